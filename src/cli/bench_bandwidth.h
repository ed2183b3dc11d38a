// What the machine's memory gives, to hold everything else against.
#pragma once

namespace verbatim {
class ThreadPool;
}

namespace verbatim::cli {

// Bytes read a second from memory far larger than the caches: the best of five passes over 1 GiB on the pool's threads.
double cpu_read_bandwidth(ThreadPool& pool);

}  // namespace verbatim::cli
