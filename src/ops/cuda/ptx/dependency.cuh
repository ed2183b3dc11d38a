// Raw instructions of programmatic dependent launches, from sm_90 on (launch.h): a kernel may start before the one in
// front of it has ended.
#pragma once

namespace verbatim::ops::cuda::ptx {

// Until the kernels in front have ended and what they wrote is visible. Every kernel that launch() starts calls it
// before it reads what they wrote, or writes what they may still read or write. A kernel that was started by one that
// had waited itself (streamed products) may before that use, past the first-level cache, what stood when that one's
// wait ended: products beside each other (StreamTurn), the shared expert and the dealing of units
// (sm90_stream_experts.cu). One that needs nothing else calls it before it ends, so that its end is also the end of
// those in front.
__device__ inline void wait_for_previous() { asm volatile("griddepcontrol.wait;" ::: "memory"); }

// The next kernel may start once all blocks have said so.
__device__ inline void let_next_start() { asm volatile("griddepcontrol.launch_dependents;" ::: "memory"); }

}  // namespace verbatim::ops::cuda::ptx
