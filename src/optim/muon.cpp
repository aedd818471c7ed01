#include "trireme/base/rounding.h"
#include "trireme/optim/optimizer.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <utility>

namespace trireme {

namespace {

// As torch.optim.Muon.
constexpr double kA = 3.4445, kB = -4.7750, kC = 2.0315, kEps = 1e-7;
constexpr int kSteps = 5;
/// Elements of the matrices of equal shape that are multiplied together, and of the units of a round on one rank.
constexpr int64_t kTogether = int64_t{1} << 27;
/// Elements of a shard whose momentum is updated at a time: bounds the fp32 values in memory.
constexpr int64_t kPass = int64_t{1} << 24;

/// beta * addend + alpha * a b [n, rows, rows], which is symmetric; addend undefined: a b. A large result is computed
/// in two panels of rows that hold its lower half.
at::Tensor symmetric_product(const at::Tensor& addend, double beta, const at::Tensor& a, const at::Tensor& b,
                             double alpha, int64_t symmetric_from) {
  const int64_t rows = a.size(1), half = rows / 2, rest = rows - half;
  if (rows < symmetric_from) return addend.defined() ? at::baddbmm(addend, a, b, beta, alpha) : at::bmm(a, b);
  at::Tensor result = at::empty({a.size(0), rows, rows}, a.options());
  for (const auto& [begin, count, columns] : {std::array{int64_t{0}, half, half}, std::array{half, rest, rows}}) {
    const auto panel = [&](const at::Tensor& of) { return of.narrow(1, begin, count).narrow(2, 0, columns); };
    at::Tensor target = panel(result);
    if (addend.defined())
      at::baddbmm_out(target, panel(addend), a.narrow(1, begin, count), b.narrow(2, 0, columns), beta, alpha);
    else
      at::bmm_out(target, a.narrow(1, begin, count), b.narrow(2, 0, columns));
  }
  result.narrow(1, 0, half)
      .narrow(2, half, rest)
      .copy_(result.narrow(1, half, rest).narrow(2, 0, half).transpose(1, 2));
  return result;
}

double flops_of(double rows, double columns) {
  const double least = std::min(rows, columns), most = std::max(rows, columns);
  const double computed = least < 2048 ? 1 : 0.75;  // of symmetric products
  return kSteps * 2 * least * least * (computed * (most + least) + most);
}

at::Tensor exchange(Communicator& group, const at::Tensor& parts) {
  at::Tensor received = at::empty_like(parts);
  group.all_to_all(received, parts)->wait();
  return received;
}

/// Orthogonalises the matrices of units [n, elements of a unit] in place, those of equal shape together.
void orthogonalise_units(const at::Tensor& units, const std::vector<ShardMatrix>& matrices) {
  std::map<std::pair<int64_t, int64_t>, std::vector<at::Tensor>> shapes;
  for (int64_t u = 0; u < units.size(0); ++u)
    for (const ShardMatrix& m : matrices)
      shapes[{m.rows, m.columns}].push_back(units[u].narrow(0, m.first, m.numel()).view({m.rows, m.columns}));
  for (auto& [shape, all] : shapes) {
    const auto most = static_cast<size_t>(std::max<int64_t>(1, kTogether / (shape.first * shape.second)));
    for (size_t begin = 0; begin < all.size(); begin += most) {
      const at::TensorList some = at::TensorList(all).slice(begin, std::min(most, all.size() - begin));
      const at::Tensor result = orthogonalised(some.size() == 1 ? some[0].unsqueeze(0) : at::stack(some));
      for (size_t i = 0; i < some.size(); ++i) some[i].copy_(result[static_cast<int64_t>(i)]);
    }
  }
}

/// Matrices whole, by the momentum of their gradients; the rest by AdamW.
///
/// Every rank updates the momentum of its shard. The units with equal matrices then go in rounds over the ranks that
/// hold them: a rank gets the updates of some units whole from the others (all_to_all), orthogonalises them and sends
/// every rank its part back. Where each rank has whole units, it broadcasts the results.
class Muon final : public Optimizer {
 public:
  Muon(const OptimizerSection& options, std::vector<TrainedShard>& shards, Communicator& world)
      : options_(options), shards_(shards), world_(world), momentum_(shards.size()) {
    at::NoGradGuard no_grad;
    for (size_t s = 0; s < shards_.size(); ++s) {
      const TrainedShard& shard = shards_[s];
      add_rest(s);
      if (shard.matrices.empty()) continue;
      momentum_[s] = at::zeros(shard.master.sizes(),
                               shard.master.options().dtype(
                                   options_.moments == OptimizerSection::Moments::kBf16 ? at::kBFloat16 : at::kFloat));
      const auto alike = [&](const TrainedShard& other) {
        return other.matrices == shard.matrices && other.master.numel() == shard.master.numel() &&
               other.group == shard.group;
      };
      if (rounds_.empty() || !alike(shards_[rounds_.back().shards[0]])) rounds_.emplace_back();
      rounds_.back().shards.push_back(s);
    }
    divide_rounds();
    if (!rest_.empty()) adamw_ = adamw_optimizer().make(options_, rest_, world_);
  }

  void step(double lr, const at::Tensor& multiplier, const at::Tensor& skip) override {
    at::NoGradGuard no_grad;
    if (adamw_) step_rest(lr, multiplier, skip);
    if (rounds_.empty()) return;
    const double rate = options_.matrix_lr ? lr * (*options_.matrix_lr / options_.lr) : lr;
    for (const Round& round : rounds_) step_round(round, rate, multiplier, skip);
    for (size_t s = 0; s < shards_.size(); ++s)
      if (momentum_[s].defined()) shards_[s].update_compute();
  }

  std::vector<StateTensor> state() override {
    std::vector<StateTensor> state = adamw_ ? adamw_->state() : std::vector<StateTensor>();
    for (size_t s = 0; s < shards_.size(); ++s)
      if (momentum_[s].defined()) state.push_back({StateKind::kFirstMoment, &shards_[s], momentum_[s]});
    return state;
  }

 private:
  /// Shards of equal units. Number i of them is orthogonalised by rank i / each of its group.
  struct Round {
    std::vector<size_t> shards = {};
    int64_t each = 1;
  };
  /// The elements of a shard with matrices that are in none, and their copies in rest_.
  struct RestOf {
    size_t shard;
    std::vector<std::pair<int64_t, int64_t>> places;  // in the shard: begin, count
    std::vector<at::Tensor> there, here;              // of the master weights, in the shard and in rest_
  };

  /// AdamW gets a shard without matrices as it is, of others a copy of the elements that are in no matrix.
  void add_rest(size_t s) {
    const TrainedShard& shard = shards_[s];
    TrainedShard rest = shard;
    if (shard.matrices.empty()) {
      rest_.push_back(std::move(rest));
      rest_of_.push_back({s, {}, {}, {}});
      return;
    }
    RestOf of{s, {}, {}, {}};
    const int64_t begin = shard.begin, end = begin + shard.master.numel();
    int64_t before = 0, count = 0;  // elements of the rest in the unit up to here, and on this rank
    rest.ranges.clear();
    rest.begin = 0;
    const auto visit = [&](int64_t first, int64_t last) {  // elements of the unit that are in no matrix
      const int64_t from = std::max(first, begin), to = std::min(last, end);
      if (from < to) {
        if (count == 0) rest.begin = before + from - first;
        for (const ShardRange& range : shard.ranges)
          if (range.begin + begin >= from && range.end + begin <= to)
            rest.ranges.push_back(
                {range.begin + begin - from + count, range.end + begin - from + count, range.tensor, range.decay});
        of.places.emplace_back(from - begin, to - from);
        count += to - from;
      }
      before += last - first;
    };
    int64_t next = 0;
    for (const ShardMatrix& matrix : shard.matrices) {
      visit(next, matrix.first);
      next = matrix.first + matrix.numel();
    }
    visit(next, shard.unit_numel);
    if (before == 0) return;
    rest.name = rest_name(shard.name);
    rest.unit_numel = before;
    rest.first_element = shard.first_element - shard.begin + rest.begin;
    rest.master = rest.compute = at::zeros({count}, shard.master.options());
    rest.amax = at::Tensor();
    rest.matrices.clear();
    int64_t at = 0;
    for (const auto& [place, length] : of.places) {
      of.there.push_back(shard.master.narrow(0, place, length));
      of.here.push_back(rest.master.narrow(0, std::exchange(at, at + length), length));
    }
    rest_.push_back(std::move(rest));
    rest_of_.push_back(std::move(of));
  }

  /// Rounds with as many units as fit, of about equal length.
  void divide_rounds() {
    std::vector<Round> rounds;
    for (const Round& all : std::exchange(rounds_, {})) {
      const TrainedShard& shard = shards_[all.shards[0]];
      const auto count = static_cast<int64_t>(all.shards.size()), ranks = int64_t{group_of(shard).size()};
      const int64_t most = ranks * std::max<int64_t>(1, kTogether / shard.unit_numel);
      const int64_t number = ceil_div(count, most), each = ceil_div(count, number * ranks);
      for (int64_t begin = 0; begin < count; begin += each * ranks)
        rounds.push_back(
            {{all.shards.begin() + begin, all.shards.begin() + std::min(count, begin + each * ranks)}, each});
    }
    rounds_ = std::move(rounds);
  }

  Communicator& group_of(const TrainedShard& shard) const { return shard.group == nullptr ? world_ : *shard.group; }

  void step_rest(double lr, const at::Tensor& multiplier, const at::Tensor& skip) {
    std::vector<at::Tensor> there, here;
    for (size_t r = 0; r < rest_.size(); ++r) {
      const TrainedShard& shard = shards_[rest_of_[r].shard];
      rest_[r].gradient = shard.gradient;
      if (shard.matrices.empty()) continue;
      std::vector<at::Tensor> parts = {shard.gradient.narrow(0, 0, 0)};
      for (const auto& [place, count] : rest_of_[r].places) parts.push_back(shard.gradient.narrow(0, place, count));
      rest_[r].gradient = at::cat(parts);
      there.insert(there.end(), rest_of_[r].there.begin(), rest_of_[r].there.end());
      here.insert(here.end(), rest_of_[r].here.begin(), rest_of_[r].here.end());
    }
    if (!here.empty()) at::_foreach_copy_(here, there);
    adamw_->step(lr, multiplier, skip);
    if (!here.empty()) at::_foreach_copy_(there, here);
    for (TrainedShard& rest : rest_) rest.gradient = at::Tensor();
  }

  /// Updates the momentum of shard s and, if `update` is defined, writes there what is orthogonalised: bf16 [n].
  void advance(size_t s, const at::Tensor& update, const at::Tensor& multiplier, const at::Tensor& skip) {
    const at::Tensor keep = skip.to(at::kBool).logical_not();
    const at::Tensor weight = (1 - skip) * (1 - options_.momentum);
    const int64_t numel = momentum_[s].numel();
    for (int64_t begin = 0; begin < numel; begin += kPass) {
      const int64_t count = std::min(kPass, numel - begin);
      const at::Tensor gradient =
          at::where(keep, shards_[s].gradient.narrow(0, begin, count).to(at::kFloat) * multiplier, 0);
      at::Tensor kept = momentum_[s].narrow(0, begin, count);
      const at::Tensor momentum = kept.to(at::kFloat);  // kept itself if it is fp32
      momentum.lerp_(gradient, weight);
      if (!momentum.is_same(kept)) kept.copy_(momentum);
      if (update.defined()) update.narrow(0, begin, count).copy_(gradient.lerp(momentum, options_.momentum));
    }
  }

  void step_round(const Round& round, double lr, const at::Tensor& multiplier, const at::Tensor& skip) {
    const TrainedShard& first = shards_[round.shards[0]];
    Communicator& group = group_of(first);
    const bool divided = first.group != nullptr;
    const int64_t n = first.master.numel(), ranks = group.size(), each = round.each,
                  count = static_cast<int64_t>(round.shards.size()), mine = group.rank() * each;
    const int64_t owned = std::clamp<int64_t>(count - mine, 0, each);

    at::Tensor updates = at::empty({divided ? ranks * each : each, n}, first.master.options().dtype(at::kBFloat16));
    for (int64_t i = 0; i < count; ++i) {
      const bool own = mine <= i && i < mine + each;
      advance(round.shards[static_cast<size_t>(i)],
              divided ? updates[i]
              : own   ? updates[i - mine]
                      : at::Tensor(),
              multiplier, skip);
    }
    if (divided) updates = exchange(group, updates).view({ranks, each, n}).transpose(0, 1).reshape({each, ranks * n});
    orthogonalise_units(updates.narrow(0, 0, owned), first.matrices);
    if (divided)
      updates = exchange(group, updates.view({each, ranks, n}).transpose(0, 1).contiguous()).view({ranks * each, n});
    for (int64_t i = 0; i < count; ++i) {
      const int64_t owner = i / each;
      at::Tensor update = divided ? updates[i] : owner == group.rank() ? updates[i - mine] : at::empty_like(updates[0]);
      if (!divided && ranks > 1) group.broadcast(update, static_cast<int>(owner))->wait();
      apply(shards_[round.shards[static_cast<size_t>(i)]], update, lr, skip);
    }
  }

  /// w = w (1 - lr decay) - lr factor(shape) update, for this rank's elements of every matrix.
  void apply(const TrainedShard& shard, const at::Tensor& update, double lr, const at::Tensor& skip) const {
    const at::Tensor keep = 1 - skip;
    const at::Tensor decayed = at::where(skip.to(at::kBool), 1.0, at::full_like(skip, 1 - lr * options_.weight_decay));
    const int64_t begin = shard.begin, end = begin + shard.master.numel();
    for (const ShardMatrix& matrix : shard.matrices) {
      const int64_t from = std::max(begin, matrix.first), to = std::min(end, matrix.first + matrix.numel());
      if (from >= to) continue;
      at::Tensor weight = shard.master.narrow(0, from - begin, to - from);
      if (matrix.decay || options_.decay_norms) weight.mul_(decayed);
      const auto rows = static_cast<double>(matrix.rows), columns = static_cast<double>(matrix.columns);
      const double factor = options_.adjust_lr_fn == OptimizerSection::AdjustLr::kOriginal
                                ? std::sqrt(std::max(1.0, rows / columns))
                                : 0.2 * std::sqrt(std::max(rows, columns));
      weight.addcmul_(update.narrow(0, from - begin, to - from), keep * (-lr * factor));
    }
  }

  OptimizerSection options_;
  std::vector<TrainedShard>& shards_;
  Communicator& world_;
  std::vector<at::Tensor> momentum_;  // [n], fp32 or bf16; undefined: the shard has no matrix
  std::vector<Round> rounds_;
  std::vector<TrainedShard> rest_;
  std::vector<RestOf> rest_of_;  // in the order of rest_
  std::unique_ptr<Optimizer> adamw_;
};

}  // namespace

at::Tensor orthogonalised(at::Tensor x, int64_t symmetric_from) {
  x.div_(at::linalg_vector_norm(x.flatten(1), 2, {1}, /*keepdim=*/true).clamp_min(kEps).unsqueeze(2));
  const bool tall = x.size(1) > x.size(2);
  if (tall) x = x.transpose(1, 2);
  for (int step = 0; step < kSteps; ++step) {
    const at::Tensor gram = symmetric_product({}, 0, x, x.transpose(1, 2), 1, symmetric_from);
    x = at::baddbmm(x, symmetric_product(gram, kB, gram, gram, kC, symmetric_from), x, kA, 1);
  }
  return tall ? x.transpose(1, 2) : x;
}

std::string rest_name(const std::string& unit) { return unit + ".vectors"; }

MatrixWork matrix_work(const OptimizerSection& options, const std::vector<UnitSpec>& units) {
  MatrixWork work;
  if (!traits_of(options.name).whole_matrices) return work;
  int64_t unit_most = 0, matrix_most = 0;
  for (const UnitSpec& unit : units) {
    if (!unit.trained || unit.matrix_numel() == 0) continue;
    ++work.units;
    work.elements += unit.matrix_numel();
    unit_most = std::max(unit_most, unit.numel());
    for (const ParameterSpec& parameter : unit.parameters)
      for (const int64_t rows : parameter.matrix_rows) {
        const int64_t columns = parameter.numel() / parameter.shape[0];
        work.flops += flops_of(static_cast<double>(rows), static_cast<double>(columns));
        matrix_most = std::max(matrix_most, rows * columns);
      }
  }
  // Updates as sent and as received, a batch of matrices with a product, its Gram matrices and a copy; fp32 values of
  // one pass over a shard.
  const int64_t round = std::max(unit_most, std::min(work.elements, kTogether)),
                batch = std::max(matrix_most, std::min(work.elements, kTogether));
  work.memory = work.units == 0 ? 0 : 2 * (2 * round + 4 * batch) + 16 * std::min(kPass, work.elements);
  return work;
}

const OptimizerTraits& muon_optimizer() {
  static const OptimizerTraits traits{.moments = 2,
                                      .bf16_moments = true,
                                      .whole_matrices = true,
                                      .make = [](const OptimizerSection& options, std::vector<TrainedShard>& shards,
                                                 Communicator& world) -> std::unique_ptr<Optimizer> {
                                        return std::make_unique<Muon>(options, shards, world);
                                      }};
  return traits;
}

}  // namespace trireme
