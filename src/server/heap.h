// The allocator's settings for a program that serves.
#pragma once

namespace verbatim::server {

// Freed bodies and replies go back to the system from now on: the allocator would otherwise come to keep as much as the
// largest of them, several times over. For the whole process; call it once, at the start.
void keep_heap_small();

}  // namespace verbatim::server
