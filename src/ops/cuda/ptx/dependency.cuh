// Raw instructions of programmatic dependent launches, from sm_90 on (launch.h): a kernel may start before the one in
// front of it has ended.
#pragma once

namespace verbatim::ops::cuda::ptx {

// Until the kernels in front have ended and what they wrote is visible. Every kernel that launch() starts calls it
// before it reads what they wrote, or writes at all; one that runs beside the kernel in front (StreamTurn), which let
// it start after its own wait, calls it before it ends.
__device__ inline void wait_for_previous() { asm volatile("griddepcontrol.wait;" ::: "memory"); }

// The next kernel may start once all blocks have said so.
__device__ inline void let_next_start() { asm volatile("griddepcontrol.launch_dependents;" ::: "memory"); }

}  // namespace verbatim::ops::cuda::ptx
