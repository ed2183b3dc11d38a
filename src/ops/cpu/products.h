// Products of stored weights with rows of activations, as jobs that share the thread pool: what matmul, matmul_group
// and experts are made of.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "ops/cpu/matmul_kernels.h"
#include "ops/ops.h"

namespace verbatim {
class ThreadPool;
}

namespace verbatim::ops::cpu {

// Working memory that is taken piece by piece, given back at once, and kept for the next operator.
class Arena {
 public:
  // 64-byte aligned, contents unspecified. Throws Error(kCapacity).
  float* take(int64_t floats);
  void reset();

 private:
  struct Block {
    struct Free {
      void operator()(float* p) const;
    };
    std::unique_ptr<float, Free> floats;
    int64_t size = 0;
  };
  std::vector<Block> blocks_;
  size_t block_ = 0;
  int64_t used_ = 0;
};

// How the loops walk one matrix that is cut in `parts`.
struct Walk {
  Walk() = default;
  Walk(const Matrix& w, int parts);

  const Matrix* matrix = nullptr;
  WeightView view;
  int parts = 1;
  int64_t part_columns = 0;    // of the matrix
  int64_t padded_columns = 0;  // of a part of prepared activations: a multiple of 16
  bool whole_groups = false;   // parts are whole groups of 16, which begin at blocks and lie in cells: the fast loops
  float scale = 1.0f;          // multiplies each part's sum
};

// Rows of activations in the form that the loops of one matrix want.
struct Activations {
  const float* const* rows = nullptr;  // pointers to parts * padded_columns floats each, or
  const float* panels = nullptr;       // [ceil(count / 16)][parts * padded_columns][16]
  int64_t panel_stride = 0;
  int64_t count = 0;
};

// Collects preparations, and does them together on the pool.
class Preparation {
 public:
  Preparation(const MatmulKernels& kernels, Arena& arena) : kernels_(kernels), arena_(arena) {}

  // `rows` point to matrix.columns floats each. What is returned may be used after run(); equal requests (same
  // pointers to rows, input scale and form) in a row give the same activations.
  Activations add(const Walk& walk, std::span<const float* const> rows);
  void run(ThreadPool& pool);
  // Floats taken from the arena since the last run.
  int64_t floats() const { return floats_; }

 private:
  struct Row {
    Walk walk;
    const float* from;
    float* to;
    bool permuted;
  };
  struct Panel {
    Walk walk;
    std::vector<const float*> from;  // up to 16
    float* to;
  };
  struct Request {
    std::vector<const float*> rows, prepared;
    int64_t columns;
    int parts, form;  // form: 0 rows, 1 permuted rows, 2 panels
    int64_t first_column_in_block;
    float input_scale;
    Activations result;
  };

  const MatmulKernels& kernels_;
  Arena& arena_;
  std::vector<Row> rows_;
  std::vector<Panel> panels_;
  std::vector<std::unique_ptr<Request>> requests_;
  int64_t floats_ = 0;
};

// One matrix times some rows. Without `add_parts`, part p of row r, output o goes to
// y[p * part_stride + r * row_stride + o]; with it the parts are added as a balanced tree and part_stride is not used.
struct Job {
  Walk walk;
  Activations x;
  float* y = nullptr;
  int64_t row_stride = 0, part_stride = 0;
  bool add_parts = true;
};

// All jobs, cut over outputs (and blocks of rows where outputs are few).
void run_jobs(const MatmulKernels& kernels, ThreadPool& pool, std::span<const Job> jobs);

// Adds `parts` vectors of n floats as a balanced tree, ((p0 + p1) + (p2 + p3)) + ..., in place; the sum stands in the
// first.
void add_tree(float* values, int parts, int64_t n);

// One row of a matrix as floats.
void unpack_row(const MatmulKernels& kernels, const Matrix& w, int64_t row, float* to);

// x rounded to NVFP4 under input_scale (MODEL.md section 9), as code * block scale: what remains is a product with
// input_scale. Blocks of 16 begin where the matrix' blocks do. `to` may be x.
void round_to_nvfp4(const float* x, int64_t columns, int64_t first_column_in_block, float input_scale, float* to);

}  // namespace verbatim::ops::cpu
