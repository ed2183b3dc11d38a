#include "server/heap.h"

#include <malloc.h>

namespace verbatim::server {

void keep_heap_small() {
  // Setting them also ends glibc's raising of both to the size of what was freed last.
  ::mallopt(M_MMAP_THRESHOLD, 1 << 20);
  ::mallopt(M_TRIM_THRESHOLD, 1 << 20);
}

}  // namespace verbatim::server
