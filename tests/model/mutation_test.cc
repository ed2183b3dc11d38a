// Each test breaks one thing that has been broken elsewhere and asserts that a golden notices: the error passes the
// bound that golden_test.cc sets, by how much is printed. What no golden sees stands in tests/ops (ties, dense limit).
#include <gtest/gtest.h>

#include "base/formats.h"
#include "tests/model/ops_proxy.h"
#include "tests/model/tiny_models.h"

namespace verbatim::model {
namespace {

constexpr double kBound = 1e-4;  // of golden_test.cc

float rounded(float x) { return bf16_to_float(float_to_bf16(x)); }

// The tiny model as `directory` stores it, run with something broken.
class Mutation : public testing::Test {
 protected:
  // The error of the logits against the golden that the unbroken model meets.
  void expect_seen(ops::Ops& ops, const Model& model, const char* ids, const char* logits) {
    const auto ours = last_rows(prompt_logits(ops, model, golden_.ids(ids)), 100, model.config.vocabulary);
    const double error = relative_error(ours, golden_.floats(logits));
    std::printf("error %.2e, %.0f times the bound\n", error, error / kBound);
    EXPECT_GT(error, kBound);
  }
  void expect_seen(ops::Ops& ops) { expect_seen(ops, bf16_.model, "text.300.ids", "text.300.logits"); }
  void expect_seen() { expect_seen(*cpu_.ops); }

  float* mutable_vector(const float* values) { return const_cast<float*>(values); }

  Golden golden_;
  Cpu cpu_;
  Loaded bf16_{tiny("tiny-bf16")};
};

TEST_F(Mutation, NothingBrokenMeetsTheBound) {
  const auto ours = last_rows(prompt_logits(*cpu_.ops, bf16_.model, golden_.ids("text.300.ids")), 100, 512);
  EXPECT_LT(relative_error(ours, golden_.floats("text.300.logits")), kBound);
}

TEST_F(Mutation, NoClampInSwiGlu) {
  bf16_.model.config.swiglu_limit = 1e30f;
  expect_seen();
}

TEST_F(Mutation, NoSinkhorn) {
  bf16_.model.config.sinkhorn_iterations = 1;
  expect_seen();
}

TEST_F(Mutation, CombNotTransposed) {
  struct Transposed : OpsProxy {
    using OpsProxy::OpsProxy;
    void hyper_leave(const ops::HyperShape& shape, const float* maps, const float* y, int64_t rows,
                     float* streams) override {
      const int64_t S = shape.streams, width = (2 + S) * S;
      std::vector<float> turned(maps, maps + rows * width);
      for (int64_t row = 0; row < rows; ++row)
        for (int64_t i = 0; i < S; ++i)
          for (int64_t j = 0; j < S; ++j)
            turned[static_cast<size_t>(row * width + 2 * S + j * S + i)] = maps[row * width + 2 * S + i * S + j];
      inner_.hyper_leave(shape, turned.data(), y, rows, streams);
    }
  } ops(*cpu_.ops);
  expect_seen(ops);
}

TEST_F(Mutation, HyperBaseRoundedToBf16) {
  for (Layer& layer : bf16_.model.weights.layers)
    for (const Site* site : {&layer.attention_site, &layer.ffn_site})
      for (int64_t i = 0; i < bf16_.model.config.maps_width(); ++i)
        mutable_vector(site->hyper.base)[i] = rounded(site->hyper.base[i]);
  expect_seen();
}

TEST_F(Mutation, HyperScaleRoundedToBf16) {
  for (Layer& layer : bf16_.model.weights.layers)
    for (const Site* site : {&layer.attention_site, &layer.ffn_site})
      for (int64_t i = 0; i < 3; ++i) mutable_vector(site->hyper.scale)[i] = rounded(site->hyper.scale[i]);
  expect_seen();
}

TEST_F(Mutation, GateScaleUsedForUp) {
  Loaded nvfp4(tiny("tiny-nvfp4"));
  for (Layer& layer : nvfp4.model.weights.layers) {
    layer.mlp.up.matrix_scale = layer.mlp.gate.matrix_scale;
    for (ops::ExpertWeights& expert : layer.moe.experts) expert.up.matrix_scale = expert.gate.matrix_scale;
  }
  expect_seen(*cpu_.ops, nvfp4.model, "nvfp4.ids", "nvfp4.w4a16_logits");
}

TEST_F(Mutation, ConvolutionTapsRoundedToBf16) {
  Loaded nvfp4(tiny("tiny-nvfp4"));  // its taps are float32
  const int64_t taps = nvfp4.model.config.linear_width() * nvfp4.model.config.conv_taps;
  for (Layer& layer : nvfp4.model.weights.layers) {
    if (layer.mixer != MixerKind::kLinear) continue;
    for (const float* conv : {layer.linear.vectors.conv_q, layer.linear.vectors.conv_k, layer.linear.vectors.conv_v})
      for (int64_t i = 0; i < taps; ++i) mutable_vector(conv)[i] = rounded(conv[i]);
  }
  expect_seen(*cpu_.ops, nvfp4.model, "nvfp4.ids", "nvfp4.w4a16_logits");
}

TEST_F(Mutation, LowRankNormsWithTheIndexersEpsilon) {
  struct Swapped : OpsProxy {
    Swapped(ops::Ops& inner, const Config& config) : OpsProxy(inner), c(config) {}
    void rms_norm(const float* x, int64_t x_stride, const float* weight, float epsilon, int64_t rows, int64_t width,
                  float* y, int64_t y_stride) override {
      if (width == c.query_rank || width == c.latent) epsilon = 1e-6f;
      inner_.rms_norm(x, x_stride, weight, epsilon, rows, width, y, y_stride);
    }
    const Config& c;
  } ops(*cpu_.ops, bf16_.model.config);
  expect_seen(ops);
}

TEST_F(Mutation, IndexersNormWithTheModelsEpsilon) {
  struct Swapped : OpsProxy {
    using OpsProxy::OpsProxy;
    void layer_norm(const float* x, const float* weight, const float* bias, float, int64_t rows, int64_t width,
                    float* y) override {
      inner_.layer_norm(x, weight, bias, 1e-5f, rows, width, y);
    }
  } ops(*cpu_.ops);
  expect_seen(ops);
}

TEST_F(Mutation, TailDropped) {
  bf16_.model.config.index_select_tail = false;
  expect_seen();
}

TEST_F(Mutation, RouterInBf16) {
  struct Rounded : OpsProxy {
    using OpsProxy::OpsProxy;
    void route(const float* logits, const float* bias, int64_t rows, int64_t experts, int64_t top, float scale,
               int32_t* chosen, float* weights) override {
      std::vector<float> halves(logits, logits + rows * experts);
      for (float& logit : halves) logit = rounded(logit);
      inner_.route(halves.data(), bias, rows, experts, top, scale, chosen, weights);
    }
  } ops(*cpu_.ops);
  expect_seen(ops);
}

TEST_F(Mutation, PoolKeysRoundedEarly) {
  struct Rounded : OpsProxy {
    using OpsProxy::OpsProxy;
    void append_latents(const ops::IndexShape& shape, int64_t latent_width, const float* latents, const float* keys,
                        const float* gates, const float* ape, std::span<const ops::Span> spans,
                        const ops::LatentCache& cache) override {
      inner_.append_latents(shape, latent_width, latents, keys, gates, ape, spans, cache);
      for (const ops::Span& span : spans)
        for (int64_t pool = 0; pool < (span.position + span.rows) / shape.pool; ++pool) {
          const int64_t per_page = ops::kPageTokens / shape.pool;
          float* key = static_cast<float*>(cache.pools) +
                       (span.pages[pool / per_page] * per_page + pool % per_page) * shape.width;
          for (int64_t i = 0; i < shape.width; ++i) key[i] = rounded(key[i]);
        }
    }
  } ops(*cpu_.ops);
  expect_seen(ops);
}

TEST_F(Mutation, TiesToTheHigherPool) {
  // Equal pool keys do not occur in random weights; make every score of a query equal by zero head weights.
  for (Layer& layer : bf16_.model.weights.layers) layer.sparse.index_weights = Matrix{};
  struct Equal : OpsProxy {
    Equal(ops::Ops& inner, bool reverse) : OpsProxy(inner), reversed(reverse) {}
    void matmul_group(std::span<const Product> products, const float* x, int64_t x_stride, int64_t rows) override {
      std::vector<Product> real;
      for (const Product& product : products) {
        if (product.weight->rows > 0)
          real.push_back(product);
        else
          for (int64_t i = 0; i < rows * product.y_stride; ++i) product.y[i] = 0;
      }
      inner_.matmul_group(real, x, x_stride, rows);
    }
    void select_pools(const ops::IndexShape& shape, const float* q, const float* head_weights,
                      std::span<const ops::Span> spans, const ops::LatentCache& cache,
                      const ops::Selection& selection) override {
      inner_.select_pools(shape, q, head_weights, spans, cache, selection);
      for (const ops::Span& span : spans)
        for (int64_t row = 0; row < span.rows; ++row) {
          const int64_t complete = (span.position + row + 1) / shape.pool, budget = shape.budget_pools();
          int32_t* pools = selection.pools + (span.first_row + row) * budget;
          if (complete <= budget) continue;
          for (int64_t i = 0; i < budget; ++i) {
            EXPECT_EQ(pools[i], i) << "equal scores: the lowest pools, in order";
            if (reversed) pools[i] = static_cast<int32_t>(complete - budget + i);
          }
        }
    }
    bool reversed;
  };
  Equal right(*cpu_.ops, false), wrong(*cpu_.ops, true);
  const auto ids = golden_.ids("text.100.ids");
  const double error = relative_error(prompt_logits(wrong, bf16_.model, ids), prompt_logits(right, bf16_.model, ids));
  std::printf("error %.2e, %.0f times the bound\n", error, error / kBound);
  EXPECT_GT(error, kBound);
}

}  // namespace
}  // namespace verbatim::model
