// Linear attention against the plain recurrence of MODEL.md section 3 in float64, and against itself in bits.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <functional>

#include "base/formats.h"
#include "tests/ops/step_harness.h"

namespace verbatim::ops {
namespace {

enum class Regime { kUsual, kCollinear, kKeep, kForget, kTurning, kZeroRows, kHardBeta };

struct Problem {
  KdaShape shape;
  int64_t rows = 0;
  Floats conv_q, conv_k, conv_v, a_log, dt_bias, o_norm;
  Floats q, k, v, f, gate, beta;  // rows + kJunkRows rows

  int64_t channels() const { return shape.heads * shape.width; }
};

Problem make_problem(int64_t heads, int64_t width, int64_t rows, Regime regime, uint64_t seed, float lower = -5.0f) {
  Problem p;
  p.shape = {.heads = heads, .width = width, .lower_bound = lower, .norm_epsilon = 1e-5f};
  p.rows = rows;
  const int64_t channels = heads * width, all = rows + kJunkRows;
  p.conv_q = random_floats(channels * 4, seed + 1, 0.5f);
  p.conv_k = random_floats(channels * 4, seed + 2, 0.5f);
  p.conv_v = random_floats(channels * 4, seed + 3, 0.5f);
  p.a_log = random_floats(heads, seed + 4, 0.5f);
  p.dt_bias = random_floats(channels, seed + 5);
  p.o_norm = random_floats(width, seed + 6, 0.3f);
  for (float& x : p.o_norm) x += 1.0f;
  p.q = random_floats(all * channels, seed + 7);
  p.k = random_floats(all * channels, seed + 8);
  p.v = random_floats(all * channels, seed + 9);
  p.f = random_floats(all * channels, seed + 10, 2.0f);
  p.gate = random_floats(all * channels, seed + 11);
  p.beta = random_floats(all * heads, seed + 12);
  const auto fill = [](Floats& x, float value) { std::fill(x.begin(), x.end(), value); };
  switch (regime) {
    case Regime::kUsual: break;
    case Regime::kCollinear:
      // Every row the same key but for a part in a few thousand; slow decay and strong writes.
      for (int64_t r = 1; r < all; ++r)
        for (int64_t c = 0; c < channels; ++c)
          p.k[static_cast<size_t>(r * channels + c)] =
              p.k[static_cast<size_t>(c)] + 2e-3f * p.k[static_cast<size_t>(r * channels + c)];
      fill(p.f, -6.0f);
      fill(p.beta, 4.0f);
      break;
    case Regime::kKeep: fill(p.f, -40.0f); break;
    case Regime::kForget: fill(p.f, 40.0f); break;
    case Regime::kTurning:
      // Whole chunks at one end of the decay, and chunks that turn in the middle.
      for (int64_t r = 0; r < all; ++r)
        for (int64_t c = 0; c < channels; ++c)
          p.f[static_cast<size_t>(r * channels + c)] =
              ((r / 8) % 4 == 0 || (r / 8) % 4 == 2 || (r / 16) % 3 == 0) ? 40.0f : -12.0f;
      break;
    case Regime::kZeroRows:
      for (int64_t r = 0; r < all; ++r) {
        if (r % 11 >= 5) continue;
        for (Floats* x : {&p.q, &p.k, &p.v}) std::fill_n(x->begin() + r * channels, channels, 0.0f);
      }
      break;
    case Regime::kHardBeta:
      for (size_t i = 0; i < p.beta.size(); ++i) p.beta[i] = i % 3 == 0 ? 30.0f : -30.0f;
      break;
  }
  return p;
}

// ---- reference --------------------------------------------------------------------------------------------------
struct Reference {
  std::vector<double> out;    // [rows, heads * width]
  std::vector<double> bound;  // [rows, heads]: of the error of a head's output, as a vector's length
  double deepest = 0;         // largest |G|
  double key_cosine = 1;      // smallest cosine of neighbouring keys
};

double sigmoid(double x) { return 1 / (1 + std::exp(-x)); }

double length(const std::vector<double>& x) {
  double sum = 0;
  for (const double each : x) sum += each * each;
  return std::sqrt(sum);
}

// After convolution and SiLU, with a bound of the float32 chain's error (4 roundings of sums of magnitude sum |tap x|;
// the slope of SiLU is at most 1.1; SiLU itself 4 ulp).
struct Convolved {
  std::vector<double> x, error;
};

Convolved convolve(const Problem& p, const Floats& taps, const Floats& input, int64_t row, int64_t offset) {
  constexpr double kUnit = 0x1p-24;
  Convolved y;
  for (int64_t c = offset; c < offset + p.shape.width; ++c) {
    double sum = 0, magnitude = 0;
    for (int64_t i = 0; i < 4; ++i) {
      const int64_t from = row - 3 + i;
      if (from < 0) continue;
      const double term =
          double{taps[static_cast<size_t>(c * 4 + i)]} * input[static_cast<size_t>(from * p.channels() + c)];
      sum += term;
      magnitude += std::abs(term);
    }
    y.x.push_back(sum * sigmoid(sum));
    y.error.push_back(4.4 * kUnit * magnitude + 8 * kUnit * std::abs(y.x.back()));
  }
  return y;
}

// S <- diag(exp g) S; S += k u^T with u = beta (v - k^T S); o = q^T S.
//
// The bound. With |k| <= 1, 0 <= beta <= 1 and g <= 0 a step of the recurrence shrinks any error of S, at least by the
// slowest channel's decay. Roundings are taken as independent, so that squares add: the error E of S after row t has
// E_t^2 = (exp(max g) E_(t-1))^2 + (what row t adds)^2. A row adds, in units of roundoff: sqrt(width + 64) times M,
// with M the root of the sum of the squared lengths of what the chunked sums add up (S at the chunk's start, the u of
// its rows, v): `width` roundings of a column product, 16 of the sums over rows twice, 32 for products, exps and beta;
// (|G| + 24) times |S| for the sum of log decays and their sigmoids (4 ulp of at most 5); the errors of k and v. The
// output norm divides by the root mean square of o, at most doubling the relative error, and adds width / 16 + 16
// roundings. kSigmas of that is a row's bound: safe, and slack where few channels remember.
//
// Over all rows together relative errors average: what the sums add up is what the result is made of, and weights
// exp(G_t - G_s) that matter span few rows, so kSigmas (sqrt(width + 64) + max |G| / 2) roundoffs.
constexpr double kSigmas = 4;

double root_of_squares(std::initializer_list<double> terms) {
  double sum = 0;
  for (const double term : terms) sum += term * term;
  return std::sqrt(sum);
}

Reference reference_kda(const Problem& p) {
  constexpr double kUnit = 0x1p-24;
  const int64_t heads = p.shape.heads, width = p.shape.width, channels = p.channels();
  Reference r;
  r.out.resize(static_cast<size_t>(p.rows * channels));
  r.bound.resize(static_cast<size_t>(p.rows * heads));
  for (int64_t head = 0; head < heads; ++head) {
    const int64_t offset = head * width;
    std::vector<double> s(static_cast<size_t>(width * width)), last_key, total(static_cast<size_t>(width));
    double error = 0, magnitude = 0;
    for (int64_t t = 0; t < p.rows; ++t) {
      const auto unit = [&](Convolved& x, double factor) {
        const double scale = factor / std::sqrt(length(x.x) * length(x.x) + 1e-6);
        for (double& each : x.x) each *= scale;
        return 2 * length(x.error) * scale + (static_cast<double>(width) / 16 + 8) * kUnit * factor;
      };
      Convolved q = convolve(p, p.conv_q, p.q, t, offset), k = convolve(p, p.conv_k, p.k, t, offset);
      const Convolved v = convolve(p, p.conv_v, p.v, t, offset);
      const double q_error = unit(q, 1 / std::sqrt(static_cast<double>(width))), k_error = unit(k, 1);
      if (t > kConvTaps && length(k.x) > 0.5 && length(last_key) > 0.5) {
        double cosine = 0;
        for (int64_t i = 0; i < width; ++i) cosine += k.x[static_cast<size_t>(i)] * last_key[static_cast<size_t>(i)];
        r.key_cosine = std::min(r.key_cosine, cosine / length(k.x) / length(last_key));
      }
      last_key = k.x;
      const double before = length(s);
      if (t % kChunkRows == 0) {
        magnitude = before * before;
        std::fill(total.begin(), total.end(), 0.0);
      }
      double slowest = 0, deepest = 0;
      for (int64_t i = 0; i < width; ++i) {
        const double x =
            double{p.f[static_cast<size_t>(t * channels + offset + i)]} + p.dt_bias[static_cast<size_t>(offset + i)];
        const double rate = std::exp(double{p.a_log[static_cast<size_t>(head)]});
        const double g = p.shape.lower_bound != 0.0f ? p.shape.lower_bound * sigmoid(rate * x)
                                                     : -rate * (std::max(x, 0.0) + std::log1p(std::exp(-std::abs(x))));
        total[static_cast<size_t>(i)] += g;
        deepest = std::max(deepest, -total[static_cast<size_t>(i)]);
        slowest = std::max(slowest, std::exp(g));
        for (int64_t j = 0; j < width; ++j) s[static_cast<size_t>(i * width + j)] *= std::exp(g);
      }
      r.deepest = std::max(r.deepest, deepest);
      const double beta = sigmoid(p.beta[static_cast<size_t>(t * heads + head)]);
      std::vector<double> u = v.x;
      for (int64_t i = 0; i < width; ++i)
        for (int64_t j = 0; j < width; ++j)
          u[static_cast<size_t>(j)] -= k.x[static_cast<size_t>(i)] * s[static_cast<size_t>(i * width + j)];
      for (double& each : u) each *= beta;
      for (int64_t i = 0; i < width; ++i)
        for (int64_t j = 0; j < width; ++j)
          s[static_cast<size_t>(i * width + j)] += k.x[static_cast<size_t>(i)] * u[static_cast<size_t>(j)];
      std::vector<double> o(static_cast<size_t>(width));
      for (int64_t i = 0; i < width; ++i)
        for (int64_t j = 0; j < width; ++j)
          o[static_cast<size_t>(j)] += q.x[static_cast<size_t>(i)] * s[static_cast<size_t>(i * width + j)];

      magnitude += length(u) * length(u);
      const double sums = std::sqrt(static_cast<double>(width + 64)) * kUnit *
                          root_of_squares({std::sqrt(magnitude), beta * length(v.x)});
      const double decays = (deepest + 24) * kUnit * std::max(before, length(s));
      error =
          root_of_squares({slowest * error, sums, decays, 2 * k_error * (before + length(u)), beta * length(v.error)});
      const double o_error =
          root_of_squares({length(q.x) * error, length(q.x) * sums, length(q.x) * decays, q_error * length(s)});
      const double root =
          1 / std::sqrt(length(o) * length(o) / static_cast<double>(width) + double{p.shape.norm_epsilon});
      double largest = 0, size = 0;
      for (int64_t j = 0; j < width; ++j) {
        const double factor =
            p.o_norm[static_cast<size_t>(j)] * sigmoid(p.gate[static_cast<size_t>(t * channels + offset + j)]);
        const double y = factor * o[static_cast<size_t>(j)] * root;
        r.out[static_cast<size_t>(t * channels + offset + j)] = y;
        largest = std::max(largest, std::abs(factor));
        size += y * y;
      }
      r.bound[static_cast<size_t>(t * heads + head)] =
          2 * kSigmas * largest * root * o_error + (static_cast<double>(width) / 16 + 16) * kUnit * std::sqrt(size);
    }
  }
  return r;
}

// ---- runner -----------------------------------------------------------------------------------------------------
// Slots of state and the steps over them; remembers where each slot's S stands.
class Runner {
 public:
  Runner(Ops& ops, const Problem& problem, int64_t slots = 1)
      : ops_(ops),
        p_(problem),
        conv_q_(ops, problem.conv_q),
        conv_k_(ops, problem.conv_k),
        conv_v_(ops, problem.conv_v),
        a_log_(ops, problem.a_log),
        dt_bias_(ops, problem.dt_bias),
        o_norm_(ops, problem.o_norm),
        // Whatever a slot held before must not matter.
        state_(ops, random_floats(slots * problem.channels() * problem.shape.width, 90)),
        conv_(ops, random_floats(slots * kConvRing * 3 * problem.channels(), 91)),
        key_(ops, random_floats(slots * kKdaRing * problem.channels(), 92)),
        value_(ops, random_floats(slots * kKdaRing * problem.channels(), 93)),
        decay_(ops, random_floats(slots * kKdaRing * problem.channels(), 94)),
        state_positions_(static_cast<size_t>(slots)) {}

  Floats step(const std::vector<Feed>& feeds) {
    std::vector<Span> spans;
    std::vector<int64_t> source;
    for (const Feed& feed : feeds) {
      Span span;
      span.first_row = static_cast<int64_t>(source.size());
      span.rows = static_cast<int64_t>(feed.source.size());
      span.position = feed.position;
      span.certain = feed.certain;
      span.sequence = feed.slot;
      int64_t& state_position = state_positions_[static_cast<size_t>(feed.slot)];
      if (feed.position == 0) state_position = 0;
      span.state_position = state_position;
      state_position = state_position_after(span);
      spans.push_back(span);
      source.insert(source.end(), feed.source.begin(), feed.source.end());
    }
    const int64_t channels = p_.channels(), rows = static_cast<int64_t>(source.size());
    const Device q(ops_, gather(p_.q, channels, source)), k(ops_, gather(p_.k, channels, source)),
        v(ops_, gather(p_.v, channels, source)), f(ops_, gather(p_.f, channels, source)),
        gate(ops_, gather(p_.gate, channels, source)), beta(ops_, gather(p_.beta, p_.shape.heads, source)),
        out(ops_, rows * channels);
    const KdaWeights weights{conv_q_.floats(), conv_k_.floats(),  conv_v_.floats(),
                             a_log_.floats(),  dt_bias_.floats(), o_norm_.floats()};
    const KdaInputs inputs{q.floats(), k.floats(), v.floats(), f.floats(), gate.floats(), beta.floats()};
    const KdaState state{state_.floats(), conv_.floats(), key_.floats(), value_.floats(), decay_.floats()};
    ops_.kda(p_.shape, weights, inputs, state, spans, rows, out.floats());
    return out.read();
  }

  Floats states() const { return state_.read(); }

 private:
  Ops& ops_;
  const Problem& p_;
  Device conv_q_, conv_k_, conv_v_, a_log_, dt_bias_, o_norm_, state_, conv_, key_, value_, decay_;
  std::vector<int64_t> state_positions_;
};

Floats run_pieces(Ops& ops, const Problem& p, int64_t piece) {
  Runner runner(ops, p);
  Floats out;
  feed_pieces(p.rows, piece, [&](const Feed& feed, int64_t) {
    const Floats part = runner.step({feed});
    out.insert(out.end(), part.begin(), part.end());
  });
  return out;
}

Floats run_windows(Ops& ops, const Problem& p, int64_t window, const std::function<int64_t(int64_t)>& accepted) {
  Runner runner(ops, p);
  Floats out;
  feed_windows(p.rows, window, accepted, [&](const Feed& feed, int64_t kept) {
    const Floats part = runner.step({feed});
    out.insert(out.end(), part.begin(), part.begin() + kept * p.channels());
  });
  return out;
}

struct Agreement {
  double worst = 0;                // largest error / bound of a row
  double relative = 0, bound = 0;  // of all rows together
};

Agreement compare(const Problem& p, const Floats& out, const Reference& reference) {
  Agreement a;
  double squares = 0;
  for (int64_t r = 0; r < p.rows * p.shape.heads; ++r) {
    const double off = distance(&out[static_cast<size_t>(r * p.shape.width)],
                                &reference.out[static_cast<size_t>(r * p.shape.width)], p.shape.width);
    squares += off * off;
    a.worst = std::max(a.worst, off / std::max(reference.bound[static_cast<size_t>(r)], 1e-30));
    if (!std::isfinite(off)) a.worst = INFINITY;
  }
  a.relative = std::sqrt(squares) / length(reference.out);
  a.bound = kSigmas * 0x1p-24 * (std::sqrt(static_cast<double>(p.shape.width + 64)) + reference.deepest / 2);
  return a;
}

struct Case {
  const char* name;
  Regime regime;
  int64_t heads, width, rows;
  float lower = -5.0f;
};

class KdaAccuracy : public testing::TestWithParam<Case> {};

TEST_P(KdaAccuracy, MatchesTheRecurrence) {
  const Case& c = GetParam();
  const Problem p = make_problem(c.heads, c.width, c.rows, c.regime, 1, c.lower);
  const Reference reference = reference_kda(p);
  Backend backend;
  const Floats out = run_pieces(*backend.ops, p, p.rows);
  const Agreement a = compare(p, out, reference);
  std::printf("%s: relative error %.1e of a bound of %.1e; worst row at %.4f of its own; keys' cosine >= %.7f\n",
              c.name, a.relative, a.bound, a.worst, reference.key_cosine);
  EXPECT_LT(a.relative, a.bound);
  EXPECT_LT(a.worst, 1.0);
  if (c.regime == Regime::kCollinear) {
    EXPECT_GT(reference.key_cosine, 0.9999);
  }
}

INSTANTIATE_TEST_SUITE_P(
    Regimes, KdaAccuracy,
    testing::Values(Case{"usual_32", Regime::kUsual, 3, 32, 200}, Case{"usual_128", Regime::kUsual, 2, 128, 150},
                    Case{"usual_16", Regime::kUsual, 2, 16, 100}, Case{"usual_272", Regime::kUsual, 1, 272, 40},
                    Case{"long", Regime::kUsual, 1, 32, 5000}, Case{"long_keep", Regime::kKeep, 1, 32, 5000},
                    Case{"collinear_32", Regime::kCollinear, 2, 32, 200},
                    Case{"collinear_128", Regime::kCollinear, 1, 128, 100}, Case{"keep", Regime::kKeep, 2, 32, 200},
                    Case{"forget", Regime::kForget, 2, 32, 200}, Case{"turning", Regime::kTurning, 2, 32, 200},
                    Case{"turning_128", Regime::kTurning, 1, 128, 100},
                    Case{"zero_rows", Regime::kZeroRows, 2, 32, 200}, Case{"hard_beta", Regime::kHardBeta, 2, 32, 200},
                    Case{"softplus", Regime::kUsual, 2, 32, 200, 0.0f},
                    Case{"softplus_collinear", Regime::kCollinear, 2, 32, 200, 0.0f}),
    [](const auto& each) { return std::string(each.param.name); });

TEST(Kda, RoundedTapsAreSeen) {
  const Problem p = make_problem(2, 32, 200, Regime::kUsual, 2);
  Problem rounded = p;
  for (Floats* taps : {&rounded.conv_q, &rounded.conv_k, &rounded.conv_v})
    for (float& tap : *taps) tap = bf16_to_float(float_to_bf16(tap));
  Backend backend;
  const Floats out = run_pieces(*backend.ops, p, p.rows);
  const Agreement right = compare(p, out, reference_kda(p)), wrong = compare(p, out, reference_kda(rounded));
  std::printf("taps rounded to bfloat16: relative distance %.1e, against %.1e; bound %.1e\n", wrong.relative,
              right.relative, right.bound);
  EXPECT_LT(right.relative, right.bound);
  EXPECT_GT(wrong.relative, 50 * right.bound);
}

TEST(KdaBits, InstructionSetsAndThreads) {
  for (const Regime regime : {Regime::kUsual, Regime::kCollinear, Regime::kTurning}) {
    const Problem p = make_problem(3, 48, 70, regime, 3);
    Backend plain(CpuIsa::kPlain, 1);
    const Floats expected = run_pieces(*plain.ops, p, p.rows);
    for (const CpuIsa isa : {CpuIsa::kPlain, CpuIsa::kAvx2, CpuIsa::kAvx512}) {
      if (!cpu_isa_available(isa)) continue;
      for (const int threads : {1, 2, 3}) {
        Backend backend(isa, threads);
        EXPECT_EQ(first_difference(run_pieces(*backend.ops, p, p.rows), expected), "")
            << backend.ops->name() << ", " << threads << " threads";
      }
    }
  }
  const Problem wide = make_problem(1, 272, 20, Regime::kUsual, 4);
  Backend plain(CpuIsa::kPlain, 1);
  const Floats expected = run_pieces(*plain.ops, wide, wide.rows);
  for (const CpuIsa isa : {CpuIsa::kAvx2, CpuIsa::kAvx512})
    if (cpu_isa_available(isa)) {
      EXPECT_EQ(first_difference(run_pieces(*Backend(isa, 1).ops, wide, wide.rows), expected), "");
    }
}

TEST(KdaBits, AnyCutOfAPrompt) {
  Backend backend;
  for (const int64_t width : {32, 128}) {
    const Problem p = make_problem(2, width, 150, Regime::kUsual, 5);
    const Floats expected = run_pieces(*backend.ops, p, p.rows);
    for (const int64_t piece : {1, 2, 3, 5, 7, 15, 16, 17, 31, 32, 33, 64, 149})
      EXPECT_EQ(first_difference(run_pieces(*backend.ops, p, piece), expected), "") << "pieces of " << piece;
  }
}

TEST(KdaBits, WindowsThatAreTakenBackLeaveNoTrace) {
  Backend backend;
  const Problem p = make_problem(2, 32, 110, Regime::kUsual, 6);
  const Floats expected = run_pieces(*backend.ops, p, p.rows);
  for (int64_t window = 1; window <= kWindowRows + 1; ++window)
    for (int64_t accepted = 0; accepted < window; ++accepted)
      EXPECT_EQ(first_difference(run_windows(*backend.ops, p, window, [&](int64_t) { return accepted; }), expected), "")
          << "windows of " << window << " rows, " << accepted << " accepted";
  for (uint64_t seed = 0; seed < 8; ++seed) {
    std::mt19937_64 bits(seed);
    const auto any = [&](int64_t) { return static_cast<int64_t>(bits() % (kWindowRows + 1)); };
    EXPECT_EQ(first_difference(run_windows(*backend.ops, p, kWindowRows + 1, any), expected), "") << "seed " << seed;
  }
}

TEST(KdaBits, SequencesDoNotSeeEachOther) {
  Backend backend;
  constexpr int64_t kSequences = 4;
  std::vector<Problem> problems;
  std::vector<Floats> expected;
  // One table of rows and one set of weights; sequence i reads rows from i * 40 on.
  const Problem p = make_problem(2, 32, 40 * kSequences, Regime::kUsual, 7);
  const int64_t channels = p.channels();
  const std::array<int64_t, kSequences> lengths = {40, 33, 17, 25};
  for (int64_t i = 0; i < kSequences; ++i) {
    Runner alone(*backend.ops, p);
    expected.push_back(alone.step(
        {Feed{0, 0, iota(i * 40, i * 40 + lengths[static_cast<size_t>(i)]), lengths[static_cast<size_t>(i)]}}));
  }
  Runner together(*backend.ops, p, kSequences + 1);
  std::vector<Floats> got(kSequences);
  std::array<int64_t, kSequences> done{};
  for (uint64_t turn = 0; done != lengths; ++turn) {
    std::vector<Feed> feeds;
    std::vector<int64_t> who;
    for (int64_t j = 0; j < kSequences; ++j) {
      const auto i = static_cast<size_t>((j + static_cast<int64_t>(turn)) % kSequences);
      if (turn % 3 == i % 3 && turn % 2 == 0) continue;
      const int64_t count = std::min<int64_t>(lengths[i] - done[i], 1 + static_cast<int64_t>((turn * 5 + i * 3) % 19));
      if (count == 0) continue;
      const int64_t first = static_cast<int64_t>(i) * 40 + done[i];
      feeds.push_back(
          {static_cast<int32_t>(kSequences - static_cast<int64_t>(i)), done[i], iota(first, first + count), count});
      who.push_back(static_cast<int64_t>(i));
      done[i] += count;
    }
    if (feeds.empty()) continue;
    const Floats out = together.step(feeds);
    auto from = out.begin();
    for (size_t j = 0; j < feeds.size(); ++j) {
      const auto count = static_cast<int64_t>(feeds[j].source.size()) * channels;
      Floats& to = got[static_cast<size_t>(who[j])];
      to.insert(to.end(), from, from + count);
      from += count;
    }
  }
  for (size_t i = 0; i < kSequences; ++i) EXPECT_EQ(first_difference(got[i], expected[i]), "") << "sequence " << i;
}

TEST(KdaBits, StateStandsWhereTheContractSays) {
  // A step whose last certain row completes a chunk leaves S at that chunk's start; the next step advances it.
  Backend backend;
  const Problem p = make_problem(1, 32, 64, Regime::kUsual, 8);
  Runner a(*backend.ops, p), b(*backend.ops, p);
  a.step({Feed{0, 0, iota(0, 32), 32}});
  b.step({Feed{0, 0, iota(0, 17), 17}});
  EXPECT_EQ(first_difference(a.states(), b.states()), "");
  // Rows that are not certain do not move it, even past a boundary.
  b.step({Feed{0, 17, iota(17, 31), 14}});
  b.step({Feed{0, 31, iota(31, 40), 1}});
  EXPECT_EQ(first_difference(a.states(), b.states()), "");
  a.step({Feed{0, 32, iota(32, 33), 1}});
  EXPECT_NE(first_difference(a.states(), b.states()), "");
}

}  // namespace
}  // namespace verbatim::ops
