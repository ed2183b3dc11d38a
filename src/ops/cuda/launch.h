// Launches of kernels that may start before the one in front of them has ended (ptx/dependency.cuh).
#pragma once

#include <cuda_runtime.h>

#include <cstddef>

namespace verbatim::ops::cuda {

// Kernels that shall run beside each other on one multiprocessor must agree on how it divides its first-level cache:
// this asks for the most shared memory.
template <typename... Parameters>
cudaError_t share_multiprocessors(void (*kernel)(Parameters...)) {
  return cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout, cudaSharedmemCarveoutMaxShared);
}

// A kernel that has more loads on their way than the first-level cache has room for then.
template <typename... Parameters, typename... Arguments>
cudaError_t launch_caching(void (*kernel)(Parameters...), dim3 grid, dim3 block, size_t shared_bytes,
                           cudaStream_t stream, const Arguments&... arguments) {
  if (shared_bytes > 48 * 1024) {
    const cudaError_t error =
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(shared_bytes));
    if (error != cudaSuccess) return error;
  }
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = grid;
  config.blockDim = block;
  config.dynamicSmemBytes = shared_bytes;
  config.stream = stream;
  config.attrs = &attribute;
  config.numAttrs = 1;
  return cudaLaunchKernelEx(&config, kernel, static_cast<Parameters>(arguments)...);
}

// All others.
template <typename... Parameters, typename... Arguments>
cudaError_t launch(void (*kernel)(Parameters...), dim3 grid, dim3 block, size_t shared_bytes, cudaStream_t stream,
                   const Arguments&... arguments) {
  const cudaError_t error = share_multiprocessors(kernel);
  return error != cudaSuccess ? error : launch_caching(kernel, grid, block, shared_bytes, stream, arguments...);
}

// The same in clusters of `cluster` blocks, of which the grid is a multiple.
template <typename... Parameters, typename... Arguments>
cudaError_t launch_clusters(void (*kernel)(Parameters...), unsigned cluster, dim3 grid, dim3 block, size_t shared_bytes,
                            cudaStream_t stream, const Arguments&... arguments) {
  cudaError_t error = share_multiprocessors(kernel);
  if (error == cudaSuccess)
    error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(shared_bytes));
  if (error == cudaSuccess && cluster > 8)
    error = cudaFuncSetAttribute(kernel, cudaFuncAttributeNonPortableClusterSizeAllowed, 1);
  if (error != cudaSuccess) return error;
  cudaLaunchAttribute attributes[2] = {};
  attributes[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attributes[0].val.programmaticStreamSerializationAllowed = 1;
  attributes[1].id = cudaLaunchAttributeClusterDimension;
  attributes[1].val.clusterDim.x = cluster;
  attributes[1].val.clusterDim.y = attributes[1].val.clusterDim.z = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = grid;
  config.blockDim = block;
  config.dynamicSmemBytes = shared_bytes;
  config.stream = stream;
  config.attrs = attributes;
  config.numAttrs = 2;
  return cudaLaunchKernelEx(&config, kernel, static_cast<Parameters>(arguments)...);
}

// Clusters of such a launch that the current device runs at a time; 0 where it knows none of that size.
template <typename... Parameters>
int clusters_at_a_time(void (*kernel)(Parameters...), unsigned cluster, dim3 block, size_t shared_bytes) {
  int count = 0;
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeClusterDimension;
  attribute.val.clusterDim.x = cluster;
  attribute.val.clusterDim.y = attribute.val.clusterDim.z = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(cluster);
  config.blockDim = block;
  config.dynamicSmemBytes = shared_bytes;
  config.attrs = &attribute;
  config.numAttrs = 1;
  const bool known = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                          static_cast<int>(shared_bytes)) == cudaSuccess &&
                     (cluster <= 8 ||
                      cudaFuncSetAttribute(kernel, cudaFuncAttributeNonPortableClusterSizeAllowed, 1) == cudaSuccess) &&
                     cudaOccupancyMaxActiveClusters(&count, kernel, &config) == cudaSuccess;
  if (!known) cudaGetLastError();  // this error does not last
  return known ? count : 0;
}

}  // namespace verbatim::ops::cuda
