// A hyper-connection site in one launch of clusters (sm90_hyper_cluster.cu).
#pragma once

#include "ops/cuda/kernels.h"

namespace verbatim::ops::cuda {

// Whether the shape fits and the current device knows clusters of that many blocks.
bool hyper_fits_cluster(const HyperShape& shape, const Weights& fn);
// hyper_site of kernels.h, without its partial sums.
cudaError_t hyper_cluster_site(cudaStream_t stream, const HyperShape& shape, const Weights& fn, const float* base,
                               const float* scale, const float* norm, const float* leaving_maps, const float* leaving_y,
                               int64_t rows, float* streams, float* maps, float* h);

}  // namespace verbatim::ops::cuda
