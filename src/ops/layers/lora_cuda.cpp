#include "layers/lora.h"

#include "dropout_parts.h"
#include "kernels/lora/lora.h"
#include "launch.h"
#include "trireme/ops/dispatch.h"

#include <ATen/ATen.h>
#include <c10/cuda/CUDAGuard.h>

#include <optional>

namespace trireme::launch {

namespace {

constexpr int64_t kMaxRank = 64;

/// The kernels support ranks 16, 32 and 64; other ranks are padded with zeros.
int64_t padded(int64_t rank) { return rank <= 16 ? 16 : rank <= 32 ? 32 : kMaxRank; }

at::Tensor padded_rows(const at::Tensor& a) {
  const int64_t more = padded(a.size(0)) - a.size(0);
  if (more > 0) return at::constant_pad_nd(a, {0, 0, 0, more});
  const at::Tensor whole = a.contiguous();
  return kernels::aligned16(whole.const_data_ptr()) ? whole : whole.clone();
}

/// Adapters of one launch, with the tensors that its arguments point to.
struct Launch {
  kernels::LoraProducts arguments;
  std::vector<at::Tensor> alive;
  size_t begin = 0, end = 0;
};

/// Arguments of a launch over x [.., columns], without the adapters and the matrices.
kernels::LoraProducts over(const at::Tensor& x, const Dropout& dropout) {
  kernels::LoraProducts p;
  p.columns = x.size(1);
  p.tokens = x.size(0);
  const DropoutPart begin = dropout_parts(x, dropout).front();
  p.sample_ids = dropout.sample_ids_B.const_data_ptr<int64_t>() + begin.first_sample;
  p.sample_tokens = dropout.sample_rows > 0 ? dropout.sample_rows : begin.rows;
  p.first_token = begin.first_row;
  p.element = element(x);
  const DropoutKey key = dropout_key(dropout);
  p.threshold = key.threshold;
  p.scale = static_cast<float>(key.scale);
  return p;
}

/// Groups the adapters into launches, as many in each as the kernels support.
std::vector<Launch> launches(const at::Tensor& x, const std::vector<LoraSlot>& slots) {
  std::vector<Launch> result;
  for (size_t i = 0; i < slots.size(); ++i) {
    const at::Tensor a = padded_rows(slots[i].a.value);
    const int rank = static_cast<int>(a.size(0));
    if (result.empty() || rank != 16 || result.back().arguments.rank != 16 ||
        result.back().arguments.count == kernels::kMaxLoraAdapters) {
      result.push_back({over(x, slots[i].dropout), {}, i, i});
      result.back().arguments.rank = rank;
    }
    Launch& launch = result.back();
    kernels::LoraProducts& p = launch.arguments;
    const DropoutKey key = dropout_key(slots[i].dropout);
    p.t0[p.count] = key.t0;
    p.t1[p.count] = key.t1;
    p.a[p.count] = a.const_data_ptr();
    launch.alive.push_back(a);
    ++p.count;
    ++launch.end;
  }
  return result;
}

at::Tensor padded_columns(const at::Tensor& b) {
  const int64_t more = padded(b.size(1)) - b.size(1);
  return more > 0 ? at::constant_pad_nd(b, {0, more}) : b.contiguous();
}

struct UpLaunch {
  kernels::LoraUpProducts arguments;
  at::Tensor b;
  bool serves = false;
};

/// Arguments without the wide matrix, y or dy.
UpLaunch up_launch(const at::Tensor& wide_TO, const at::Tensor& t_TR, const at::Tensor& b_OR, double scale) {
  UpLaunch launch;
  const at::ScalarType type = wide_TO.scalar_type();
  if (kernel_class(wide_TO.device()) == KernelClass::kNone || (type != at::kHalf && type != at::kBFloat16) ||
      t_TR.scalar_type() != type || b_OR.scalar_type() != type || t_TR.size(1) > kMaxRank || wide_TO.stride(1) != 1 ||
      t_TR.stride(1) != 1)
    return launch;
  // Columns of t beyond the rank are multiplied by zero rows of B, but they must be readable.
  const int64_t rank = padded(t_TR.size(1));
  if (t_TR.stride(0) != rank || t_TR.storage_offset() % rank != 0) return launch;
  launch.b = padded_columns(b_OR);
  kernels::LoraUpProducts& p = launch.arguments;
  p.rank = static_cast<int>(rank);
  p.b = launch.b.const_data_ptr();
  p.t = t_TR.const_data_ptr();
  p.tokens = wide_TO.size(0);
  p.columns = wide_TO.size(1);
  p.stride = wide_TO.stride(0);
  p.scale = static_cast<float>(scale);
  p.element = element(wide_TO);
  launch.serves = true;
  return launch;
}

}  // namespace

bool lora_fits(const at::Tensor& x, const std::vector<LoraSlot>& slots) {
  const Dropout& dropout = slots[0].dropout;
  if (x.numel() == 0 || x.dim() != 2 || !x.is_contiguous()) return false;
  for (const LoraSlot& slot : slots)
    if (slot.a.value.size(0) > kMaxRank || slot.a.value.scalar_type() != x.scalar_type()) return false;
  kernels::LoraProducts p = over(x, dropout);
  p.x = x.const_data_ptr();
  p.count = 1;
  p.rank = 16;
  return kernels::lora_fits(p);
}

void lora_down(const at::Tensor& x, std::vector<LoraSlot>& slots) {
  const c10::cuda::CUDAGuard guard(x.device());
  for (Launch& launch : launches(x, slots)) {
    kernels::LoraProducts& p = launch.arguments;
    p.x = x.const_data_ptr();
    for (size_t i = launch.begin; i < launch.end; ++i) {
      const at::Tensor t = at::empty({p.tokens, p.rank}, x.options());
      p.t[i - launch.begin] = t.mutable_data_ptr();
      slots[i].xa = t.narrow(1, 0, slots[i].a.value.size(0));
    }
    launched(kernels::lora_down(p, stream_of(x)), "lora_down");
  }
}

at::Tensor lora_gradient_product(const at::Tensor& dy_rows, const at::Tensor& b, double scale) {
  return at::mm(dy_rows, padded_columns(b)).mul_(scale);
}

std::vector<at::Tensor> lora_down_gradients(const at::Tensor& x, const at::Tensor& dx_TI,
                                            const std::vector<LoraSlot>& slots) {
  const c10::cuda::CUDAGuard guard(x.device());
  std::vector<at::Tensor> gradients;
  for (Launch& launch : launches(x, slots)) {
    kernels::LoraProducts& p = launch.arguments;
    p.x = x.const_data_ptr();
    for (size_t i = launch.begin; i < launch.end; ++i) {
      const at::Tensor da = at::empty({p.rank, p.columns}, x.options());
      p.d[i - launch.begin] = slots[i].d_xa.const_data_ptr();
      p.da[i - launch.begin] = da.mutable_data_ptr();
      gradients.push_back(da.narrow(0, 0, slots[i].a.value.size(0)));
    }
    if (dx_TI.defined()) {
      p.dx = dx_TI.mutable_data_ptr();
      p.adds = launch.begin > 0;
      launched(kernels::lora_down_gradients(p, stream_of(x)), "lora_down_gradients");
    } else {
      launched(kernels::lora_down_dw(p, stream_of(x)), "lora_down_dw");
    }
  }
  return gradients;
}

void lora_down_dx(const at::Tensor& dx_TI, const at::Tensor& x, const std::vector<LoraSlot>& slots) {
  const c10::cuda::CUDAGuard guard(x.device());
  for (Launch& launch : launches(x, slots)) {
    kernels::LoraProducts& p = launch.arguments;
    p.dx = dx_TI.mutable_data_ptr();
    p.adds = launch.begin > 0;
    for (size_t i = launch.begin; i < launch.end; ++i) p.d[i - launch.begin] = slots[i].d_xa.const_data_ptr();
    launched(kernels::lora_down_dx(p, stream_of(x)), "lora_down_dx");
  }
}

bool lora_up(const at::Tensor& y_TO, const at::Tensor& t_TR, const at::Tensor& b_OR, double scale, bool adds) {
  const c10::cuda::OptionalCUDAGuard guard(y_TO.is_cuda() ? std::optional(y_TO.device()) : std::nullopt);
  UpLaunch launch = up_launch(y_TO, t_TR, b_OR, scale);
  launch.arguments.y = y_TO.mutable_data_ptr();
  launch.arguments.adds = adds;
  if (!launch.serves || !kernels::lora_up_fits(launch.arguments)) return false;
  launched(kernels::lora_up(launch.arguments, stream_of(y_TO)), "lora_up");
  return true;
}

LoraUpGradients lora_up_gradients(const at::Tensor& dy_TO, const at::Tensor& t_TR, const at::Tensor& b_OR,
                                  double scale) {
  // For rank 64 the library's two products are faster.
  if (t_TR.size(1) > 32) return {};
  const c10::cuda::OptionalCUDAGuard guard(dy_TO.is_cuda() ? std::optional(dy_TO.device()) : std::nullopt);
  UpLaunch launch = up_launch(dy_TO, t_TR, b_OR, scale);
  kernels::LoraUpProducts& p = launch.arguments;
  p.dy = dy_TO.const_data_ptr();
  if (!launch.serves || !kernels::lora_up_fits(p)) return {};
  const at::Tensor d = at::empty({p.tokens, p.rank}, dy_TO.options()),
                   db = at::empty({p.columns, p.rank}, dy_TO.options()),
                   workspace = at::empty({static_cast<int64_t>(kernels::lora_up_gradients_workspace(p))},
                                         dy_TO.options().dtype(at::kByte));
  p.d = d.mutable_data_ptr();
  p.db = db.mutable_data_ptr();
  p.workspace = workspace.mutable_data_ptr();
  launched(kernels::lora_up_gradients(p, stream_of(dy_TO)), "lora_up_gradients");
  return {d, db.narrow(1, 0, b_OR.size(1))};
}

}  // namespace trireme::launch
