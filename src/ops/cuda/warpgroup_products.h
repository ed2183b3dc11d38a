// Products of packed weights and experts for many rows on Hopper's matrix units (sm90a_warpgroup_tile.cuh), as host
// functions. Their bits are those of packed_tile_products and experts, which take whatever these do not.
#pragma once

#include "ops/cuda/kernels.h"

namespace verbatim::ops::cuda {

// Whether this device has wgmma and this program machine code with it; asked of the current device once.
bool has_warpgroup_products();

// Packed, inputs of a part a multiple of 64.
bool warpgroup_takes(const Weights& weights, int parts);
// As packed_tile_products; or terms are added too (all of them do or none).
cudaError_t warpgroup_products(cudaStream_t stream, const Bf16Product* products, int count);

// As experts(), of a problem that says `warpgroups`: of packed matrices that warpgroup_takes all takes, in one term,
// with no input scale.
cudaError_t warpgroup_experts(cudaStream_t stream, const ExpertsProblem& problem, const ExpertsScratch& scratch);

}  // namespace verbatim::ops::cuda
