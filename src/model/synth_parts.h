// What synthetic tensors hold, for the writer of files and for models made in memory. Internal to model/.
#pragma once

#include "checkpoint/safetensors.h"
#include "model/synth.h"
#include "model/tensors.h"

namespace verbatim::model {

// Weights large enough that every branch moves the logits: mean + spread * synthetic_number.
struct Distribution {
  float mean = 0, spread = 1;
};
Distribution distribution_of(const Expected& expected);

// What the released BF16 files keep in float32; NVIDIA's file has bfloat16 hyper-connections and float32 taps.
checkpoint::DType stored_dtype(const Expected& expected, SynthForm form);
bool is_quantised(const Expected& expected, SynthForm form);
// The largest input of a projection that random prompts give: a normed vector (5 sigma), or SwiGLU's product.
float activation_scale(const Expected& expected);

}  // namespace verbatim::model
