// Where the weights of a model come from, by canonical name. Internal to model/.
#pragma once

#include <string>

#include "model/glm.h"

namespace verbatim::model {

class Binder {
 public:
  virtual ~Binder() = default;
  // Names below are relative to this prefix.
  void enter(std::string prefix) { prefix_ = std::move(prefix); }
  virtual Matrix matrix(const std::string& name, int64_t rows, int64_t columns) = 0;
  // A matrix stored under its own name, without ".weight": BF16 or F32.
  virtual Matrix plain_matrix(const std::string& name, int64_t rows, int64_t columns) = 0;
  // Widened to float32; lives as long as the weights.
  virtual const float* vector(const std::string& name) = 0;

 protected:
  std::string prefix_;
};

// Everything that forward and next_n read, in the order of the file.
void bind_weights(Binder& bind, const Config& config, Weights& weights);

// Throws Error(kUsage) unless `parts` cut every sum that ranks cut.
void check_sum_parts(const Config& config, int parts);

}  // namespace verbatim::model
