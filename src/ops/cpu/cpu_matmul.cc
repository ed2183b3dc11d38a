// Products with stored weights and the experts.
#include <algorithm>
#include <vector>

#include "base/thread_pool.h"
#include "ops/cpu/cpu_ops.h"
#include "ops/cpu/products.h"
#include "ops/cpu/scratch.h"
#include "ops/cpu/vector_kernels.h"

namespace verbatim::ops::cpu {

namespace {

// Working memory that blocks of rows and strips of outputs are chosen for. Neither changes a bit.
constexpr int64_t kWorkingFloats = int64_t{16} << 20;
constexpr int64_t kMostRows = 512;

// Kept between operators by the thread that calls them.
Arena& arena() {
  static thread_local Arena memory;
  return memory;
}

std::vector<const float*> row_pointers(const float* x, int64_t stride, int64_t rows) {
  std::vector<const float*> pointers(static_cast<size_t>(rows));
  for (int64_t r = 0; r < rows; ++r) pointers[static_cast<size_t>(r)] = x + r * stride;
  return pointers;
}

// Rows of x that are prepared at a time.
int64_t block_of_rows(int64_t rows, int64_t columns) {
  return std::min(rows,
                  std::clamp<int64_t>(kWorkingFloats / 2 / std::max<int64_t>(1, columns) / 32 * 32, 32, kMostRows));
}

}  // namespace

void CpuOps::matmul(const Matrix& w, const float* x, int64_t x_stride, int64_t rows, int parts, float* y,
                    int64_t y_stride) {
  const MatmulKernels& kernels = *kernels_.matmul;
  const int64_t block = block_of_rows(rows, w.columns);
  for (int64_t begin = 0; begin < rows; begin += block) {
    arena().reset();
    Preparation preparation(kernels, arena());
    Job job;
    job.walk = Walk(w, parts);
    job.x = preparation.add(job.walk, row_pointers(x + begin * x_stride, x_stride, std::min(block, rows - begin)));
    job.y = y + begin * y_stride;
    job.row_stride = y_stride;
    preparation.run(pool_);
    run_jobs(kernels, pool_, {&job, 1});
  }
}

void CpuOps::matmul_group(std::span<const Product> products, const float* x, int64_t x_stride, int64_t rows) {
  if (products.empty()) return;
  const MatmulKernels& kernels = *kernels_.matmul;
  const int64_t block = block_of_rows(rows, products.front().weight->columns);
  std::vector<Job> jobs(products.size());
  for (int64_t begin = 0; begin < rows; begin += block) {
    arena().reset();
    Preparation preparation(kernels, arena());
    const auto pointers = row_pointers(x + begin * x_stride, x_stride, std::min(block, rows - begin));
    for (size_t i = 0; i < jobs.size(); ++i) {
      jobs[i].walk = Walk(*products[i].weight, 1);
      jobs[i].x = preparation.add(jobs[i].walk, pointers);
      jobs[i].y = products[i].y + begin * products[i].y_stride;
      jobs[i].row_stride = products[i].y_stride;
    }
    preparation.run(pool_);
    run_jobs(kernels, pool_, jobs);
  }
}

namespace {

// One expert and the rows it was chosen for. Its rows stand together in hidden and partial buffers, from first on.
struct Chosen {
  const ExpertWeights* weights;
  int64_t first = 0, count = 0;
};

// The experts of a block of rows, from x to y.
class ExpertBlock {
 public:
  ExpertBlock(const Kernels& kernels, ThreadPool& pool, std::span<const ExpertWeights> experts,
              const ExpertWeights& shared, int64_t rows, int64_t top, const int32_t* chosen)
      : kernels_(kernels), pool_(pool), rows_(rows), top_(top), place_(static_cast<size_t>(rows * top)) {
    std::vector<int64_t> count(experts.size(), 0);
    for (int64_t i = 0; i < rows * top; ++i) ++count[static_cast<size_t>(chosen[i])];
    std::vector<int64_t> next(experts.size(), 0);
    int64_t first = 0;
    for (size_t e = 0; e < experts.size(); ++e) {
      next[e] = first;
      if (count[e] > 0) chosen_.push_back({&experts[e], first, count[e]});
      first += count[e];
    }
    source_.resize(static_cast<size_t>(rows * top + rows));
    for (int64_t i = 0; i < rows * top; ++i) {
      const int64_t at = next[static_cast<size_t>(chosen[i])]++;
      place_[static_cast<size_t>(i)] = at;
      source_[static_cast<size_t>(at)] = i / top;
    }
    if (shared.down.rows > 0) chosen_.push_back({&shared, first, rows});
    has_shared_ = shared.down.rows > 0;
    for (int64_t r = 0; r < rows; ++r) source_[static_cast<size_t>(first + r)] = r;
    places_ = first + rows;
    for (const Chosen& expert : chosen_) inner_ = std::max(inner_, expert.weights->gate.rows);
  }

  // hidden = clamped SwiGLU of gate x and up x, a row a place.
  void gate_and_up(const float* x, float limit) {
    gate_ = thread_scratch<struct GateScratch>(places_ * inner_, "experts");
    up_ = thread_scratch<struct UpScratch>(places_ * inner_, "experts");
    in_groups([&](const Chosen& expert, Preparation& preparation, std::vector<Job>& jobs) {
      std::vector<const float*> rows;
      for (int64_t i = 0; i < expert.count; ++i)
        rows.push_back(x + source_[static_cast<size_t>(expert.first + i)] * expert.weights->gate.columns);
      jobs.push_back(job(expert.weights->gate, 1, rows, preparation, gate_ + expert.first * inner_));
      jobs.push_back(job(expert.weights->up, 1, rows, preparation, up_ + expert.first * inner_));
    });
    pool_.for_each(static_cast<int64_t>(chosen_.size()), 1, [&](int64_t begin, int64_t end) {
      for (int64_t c = begin; c < end; ++c) {
        const Chosen& expert = chosen_[static_cast<size_t>(c)];
        for (int64_t i = expert.first; i < expert.first + expert.count; ++i)
          kernels_.vector->swiglu(gate_ + i * inner_, up_ + i * inner_, limit, expert.weights->gate.rows,
                                  gate_ + i * inner_);
      }
    });
  }

  // y = the weighted sum of down hidden, strip by strip of outputs.
  void down_and_combine(const float* weights, int parts, int64_t width, float* y) {
    const int64_t strip = std::min(width, std::max<int64_t>(32, kWorkingFloats / (parts * places_) / 32 * 32));
    float* partial = thread_scratch<struct PartialScratch>(parts * places_ * strip, "experts");
    std::vector<Matrix> views(chosen_.size());
    for (int64_t begin = 0; begin < width; begin += strip) {
      const int64_t outputs = std::min(strip, width - begin);
      in_groups([&](const Chosen& expert, Preparation& preparation, std::vector<Job>& jobs) {
        std::vector<const float*> rows;
        for (int64_t i = 0; i < expert.count; ++i) rows.push_back(gate_ + (expert.first + i) * inner_);
        Matrix& view = views[static_cast<size_t>(&expert - chosen_.data())];
        view = expert.weights->down.row_range(begin, outputs);
        jobs.push_back(job(view, parts, rows, preparation, partial + expert.first * strip));
        jobs.back().row_stride = strip;
        jobs.back().part_stride = places_ * strip;
        jobs.back().add_parts = false;
      });
      pool_.for_each(rows_, std::max<int64_t>(1, 4096 / outputs), [&](int64_t row, int64_t end) {
        std::vector<const float*> terms(static_cast<size_t>(top_));
        std::vector<float> sums(static_cast<size_t>(parts * outputs));
        for (; row < end; ++row) {
          for (int part = 0; part < parts; ++part) {
            const float* from = partial + part * places_ * strip;
            for (int64_t slot = 0; slot < top_; ++slot)
              terms[static_cast<size_t>(slot)] = from + place_[static_cast<size_t>(row * top_ + slot)] * strip;
            const float* last = has_shared_ ? from + (rows_ * top_ + row) * strip : nullptr;
            kernels_.vector->weighted_sum(terms.data(), weights + row * top_, top_, last, outputs,
                                          sums.data() + part * outputs);
          }
          add_tree(sums.data(), parts, outputs);
          std::copy_n(sums.data(), outputs, y + row * width + begin);
        }
      });
    }
  }

 private:
  Job job(const Matrix& w, int parts, const std::vector<const float*>& rows, Preparation& preparation, float* y) const {
    Job result;
    result.walk = Walk(w, parts);
    result.x = preparation.add(result.walk, rows);
    result.y = y;
    result.row_stride = inner_;
    return result;
  }

  // Calls add for every expert, and runs the jobs whenever prepared activations have grown enough.
  template <class Add>
  void in_groups(const Add& add) {
    const MatmulKernels& kernels = *kernels_.matmul;
    std::vector<Job> jobs;
    for (size_t c = 0; c < chosen_.size();) {
      arena().reset();
      Preparation preparation(kernels, arena());
      jobs.clear();
      for (; c < chosen_.size() && preparation.floats() < kWorkingFloats / 2; ++c) add(chosen_[c], preparation, jobs);
      preparation.run(pool_);
      run_jobs(kernels, pool_, jobs);
    }
  }

  const Kernels& kernels_;
  ThreadPool& pool_;
  int64_t rows_, top_;
  std::vector<Chosen> chosen_;   // experts ascending, the shared one last
  std::vector<int64_t> place_;   // of (row, slot)
  std::vector<int64_t> source_;  // row of x of a place
  int64_t places_ = 0, inner_ = 0;
  bool has_shared_ = false;
  float* gate_ = nullptr;
  float* up_ = nullptr;
};

}  // namespace

void CpuOps::experts(std::span<const ExpertWeights> experts, const ExpertWeights& shared, float limit, const float* x,
                     int64_t rows, int64_t top, const int32_t* chosen, const float* weights, int parts, float* y) {
  const Matrix& down = experts.empty() ? shared.down : experts.front().down;
  const int64_t width = down.rows;
  const int64_t inner = std::max(down.columns, shared.down.columns);
  const int64_t columns = experts.empty() ? shared.gate.columns : experts.front().gate.columns;
  const int64_t block = std::max<int64_t>(1, std::min(kMostRows, kWorkingFloats / ((top + 1) * inner)));
  for (int64_t begin = 0; begin < rows; begin += block) {
    const int64_t count = std::min(block, rows - begin);
    ExpertBlock work(kernels_, pool_, experts, shared, count, top, chosen + begin * top);
    work.gate_and_up(x + begin * columns, limit);
    work.down_and_combine(weights + begin * top, parts, width, y + begin * width);
  }
}

}  // namespace verbatim::ops::cpu
