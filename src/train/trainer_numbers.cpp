// What is done about a step whose loss or gradient norm is not finite.
#include "trireme/train/trainer.h"

#include "agree.h"
#include "checkpoint.h"
#include "trainer_results.h"
#include "trireme/base/error.h"
#include "trireme/base/fault.h"
#include "trireme/base/log.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <cmath>
#include <cstdlib>
#include <limits>

namespace trireme {

namespace {

constexpr int kMaxConsecutiveSkips = 20;

}  // namespace

void Trainer::handle_nonfinite(int64_t step, double loss, double grad_norm) {
  ++consecutive_skips_;
  const int64_t first_sample = (step - 1) * config_.batch.global_batch_size;
  if (compute_dtype_ == at::kHalf && consecutive_skips_ <= kMaxConsecutiveSkips) {
    log_info(
        fmt::format("step {}: gradients overflowed in fp16, the step was skipped and the loss scale halved", step));
    return;
  }
  const std::string what = fmt::format("step {}: the loss is {} and the gradient norm {}; {}; no parameter was changed",
                                       step, loss, grad_norm, find_nonfinite(step));
  if (skip_nonfinite_ && consecutive_skips_ <= kMaxConsecutiveSkips) {
    log_info(fmt::format("warning: {}, the step is skipped ({} of {} in a row)", what, consecutive_skips_,
                         kMaxConsecutiveSkips));
    return;
  }
  const std::string often = skip_nonfinite_ ? fmt::format(" ({} steps in a row)", consecutive_skips_) : "";
  checkpoints_->complete();  // of an earlier step, which was sound
  throw AgreedError(
      ExitCode::kInternal,
      fmt::format("{}{}. Lower optimizer.lr, check the data around sample {}, use precision.compute: fp32, or set "
                  "train.on_nonfinite: skip; {}",
                  what, often, first_sample, newest_checkpoint()));
}

bool Trainer::weights_unchanged_since(int64_t step) const {
  for (const PendingMetrics& later : pending_) {
    if (later.done) later.done->synchronize();
    const double* values = later.values.const_data_ptr<double>();
    if (later.step > step && values[kSkipped] == 0 && values[kSpiked] == 0) return false;
  }
  return true;
}

std::string Trainer::find_nonfinite(int64_t step) {
  // Computed once more. Where the run stops at it, nothing has changed the weights; where it goes on, the step after it
  // was under way before its numbers were read, and has moved them.
  const bool same_weights = weights_unchanged_since(step);
  std::string found;
  observe_gradients(
      [&](const std::string& parameter, const at::Tensor& gradient) {
        if (found.empty() && !gradient.isfinite().all().item<bool>()) found = "the gradient of " + parameter;
      },
      step);
  const StepBatch batch = task_.batch(step - 1);
  const double local_loss = forward_backward(batch).item<double>();
  units_->clear_gradients();
  observe_gradients(nullptr);
  if (!std::isfinite(local_loss)) found = "the loss" + (found.empty() ? "" : " and " + found);
  std::string text;
  const auto all = comm_.all_gather_host(found);
  for (int rank = 0; rank < comm_.size(); ++rank) {
    const std::string& theirs = all[static_cast<size_t>(rank)];
    if (theirs.empty()) continue;
    if (text.size() > 400) {
      text += ", and more";
      break;
    }
    text += fmt::format("{}{} on rank {} ({})", text.empty() ? "" : ", ", theirs, rank,
                        world_.hosts()[static_cast<size_t>(rank)]);
  }
  std::string otherwise;  // than the step was computed
  if (!same_weights) otherwise = fmt::format(" with the weights after step {}", completed_);
  if (compute_dtype_ == at::kHalf) otherwise += fmt::format(" at a loss scale of {:g}", loss_scale_.item<double>());
  if (!text.empty())
    return fmt::format("not finite{}: {}", otherwise.empty() ? "" : ", computed again" + otherwise, text);
  return fmt::format("computed again{}, every gradient of every rank is finite{}", otherwise,
                     otherwise.empty() ? ": suspect a sum over ranks that overflows, or faulty memory" : "");
}

void Trainer::observe_gradients(const std::function<void(const std::string&, const at::Tensor&)>& check, int64_t step) {
  const bool faults = std::getenv("TRIREME_FAULT") != nullptr;
  if (!check && !faults) {
    units_->observe_gradients({});
    return;
  }
  units_->observe_gradients([this, check, step](const ParameterSpec& parameter, at::Tensor& gradient) {
    const std::string& name = parameter.parts.front().name;
    if (fault_point("gradient:" + name, comm_.rank(), step > 0 ? step : completed_ + 1))
      gradient.view(-1)[0] = std::numeric_limits<float>::quiet_NaN();
    if (check) check(name, gradient);
  });
}

}  // namespace trireme
