#include "kernel_bridge.h"

#include "bridge_tools.h"
#include "kernels/bert_embedding/bert_embedding.h"
#include "kernels/cross_entropy/cross_entropy.h"
#include "kernels/dropout/dropout.h"
#include "kernels/embedding/embedding.h"
#include "kernels/rope/rope.h"
#include "kernels/scale/scale.h"

#include <ATen/ATen.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGuard.h>

namespace trireme::bridge {

namespace {

/// Kernels are built for sm_90a, which runs on compute capability 9.0 only.
bool is_hopper(c10::DeviceIndex device) {
  static std::array<int, 64> known{};  // 0 unknown, 1 no, 2 yes; a race writes the same value twice
  int& answer = known.at(static_cast<size_t>(device));
  if (answer == 0) {
    int major = 0, minor = 0;
    (void)cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device);
    (void)cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device);
    answer = major == 9 && minor == 0 ? 2 : 1;
  }
  return answer == 2;
}

kernels::HeadStrides strides(const at::Tensor& x_BSNH) {
  return {x_BSNH.stride(0), x_BSNH.stride(1), x_BSNH.stride(2)};
}

/// 16-byte accesses need every head to start on such a boundary and its elements to be neighbours.
bool suits_packs(const at::Tensor& x_BSNH) {
  const int64_t pack = 16 / x_BSNH.element_size();
  return x_BSNH.stride(3) == 1 && x_BSNH.stride(0) % pack == 0 && x_BSNH.stride(1) % pack == 0 &&
         x_BSNH.stride(2) % pack == 0 && kernels::aligned16(x_BSNH.const_data_ptr());
}

}  // namespace

bool has_kernels(const at::Tensor& x) {
  const at::ScalarType type = x.scalar_type();
  return x.is_cuda() && (type == at::kFloat || type == at::kHalf || type == at::kBFloat16) &&
         is_hopper(x.device().index());
}

bool on_hopper(at::Device device) { return is_hopper(device.index()); }

void dropout(const at::Tensor& x, at::Tensor& out, const at::Tensor& sample_ids, const DropoutKey& key,
             bool accumulate) {
  const c10::cuda::CUDAGuard guard(x.device());
  const kernels::DropoutArguments arguments{x.const_data_ptr(),
                                            out.mutable_data_ptr(),
                                            sample_ids.const_data_ptr<int64_t>(),
                                            x.size(0),
                                            x.size(1) * x.size(2),
                                            key.t0,
                                            key.t1,
                                            key.threshold,
                                            static_cast<float>(key.scale),
                                            accumulate,
                                            element(x)};
  launched(kernels::dropout(arguments, stream_of(x)), "dropout");
}

bool rope_rotate(at::Tensor heads, const at::Tensor& cos, const at::Tensor& sin, int64_t rotated) {
  if (heads.size(3) % 16 != 0 || !suits_packs(heads) || cos.scalar_type() != heads.scalar_type()) return false;
  const c10::cuda::CUDAGuard guard(heads.device());
  launched(
      kernels::rope_rotate(heads.mutable_data_ptr(), cos.const_data_ptr(), sin.const_data_ptr(),
                           heads.size(0) * heads.size(1), static_cast<int>(heads.size(2)), static_cast<int>(rotated),
                           static_cast<int>(heads.size(3)), 1, element(heads), stream_of(heads)),
      "rope_rotate");
  return true;
}

at::Tensor rope_merge(const at::Tensor& dq, const at::Tensor& dk, const at::Tensor& dv, const at::Tensor& cos,
                      const at::Tensor& sin) {
  if (dq.size(3) % 16 != 0 || !suits_packs(dq) || !suits_packs(dk) || !suits_packs(dv) ||
      cos.scalar_type() != dq.scalar_type())
    return {};
  const c10::cuda::CUDAGuard guard(dq.device());
  at::Tensor d_qkv = at::empty({dq.size(0), dq.size(1), dq.size(2) + 2 * dk.size(2), dq.size(3)}, dq.options());
  launched(kernels::rope_merge(dq.const_data_ptr(), strides(dq), dk.const_data_ptr(), strides(dk), dv.const_data_ptr(),
                               strides(dv), cos.const_data_ptr(), sin.const_data_ptr(), d_qkv.mutable_data_ptr(),
                               dq.size(0), dq.size(1), static_cast<int>(dq.size(2)), static_cast<int>(dk.size(2)),
                               static_cast<int>(dq.size(3)), element(dq), stream_of(dq)),
           "rope_merge");
  return d_qkv;
}

void cross_entropy_(at::Tensor& logits, const at::Tensor& targets, const at::Tensor& weights,
                    const at::Tensor& gradient_weights, at::Tensor& losses, bool want_gradient) {
  const c10::cuda::CUDAGuard guard(logits.device());
  kernels::CrossEntropy a;
  a.logits = logits.const_data_ptr();
  a.d_logits = want_gradient ? logits.mutable_data_ptr() : nullptr;
  a.targets = targets.const_data_ptr<int64_t>();
  a.weights = weights.const_data_ptr<float>();
  a.gradient_weights = gradient_weights.const_data_ptr<float>();
  a.loss = losses.mutable_data_ptr<float>();
  a.tokens = logits.size(0);
  a.vocab = logits.size(1);
  a.stride = logits.stride(0);
  a.element = a.gradient_element = element(logits);
  launched(kernels::cross_entropy(a, stream_of(logits)), "cross_entropy");
}

at::Tensor sum(const at::Tensor& values) {
  const c10::cuda::CUDAGuard guard(values.device());
  at::Tensor total = at::empty({}, values.options());
  launched(kernels::sum_values(values.const_data_ptr<float>(), values.numel(), total.mutable_data_ptr<float>(),
                               /*accumulate=*/false, stream_of(values)),
           "sum_values");
  return total;
}

at::Tensor scaled(const at::Tensor& x, const at::Tensor& factor, at::ScalarType dtype) {
  const c10::cuda::CUDAGuard guard(x.device());
  at::Tensor out = at::empty(x.sizes(), x.options().dtype(dtype));
  launched(kernels::scale(x.const_data_ptr(), element(x), factor.const_data_ptr<float>(), out.mutable_data_ptr(),
                          element(out), x.numel(), stream_of(x)),
           "scale");
  return out;
}

at::Tensor scaled_rows(const at::Tensor& x, const at::Tensor& factors) {
  const c10::cuda::CUDAGuard guard(x.device());
  at::Tensor out = at::empty(x.sizes(), x.options());
  launched(kernels::scale_rows(x.const_data_ptr(), factors.const_data_ptr<float>(), out.mutable_data_ptr(), x.size(0),
                               x.size(1), element(x), stream_of(x)),
           "scale_rows");
  return out;
}

at::Tensor embedding(const at::Tensor& table, const at::Tensor& ids) {
  const c10::cuda::CUDAGuard guard(table.device());
  std::vector<int64_t> shape = ids.sizes().vec();
  shape.push_back(table.size(1));
  at::Tensor y = at::empty(shape, table.options());
  kernels::EmbeddingForward a;
  a.table = table.const_data_ptr();
  a.ids = ids.const_data_ptr<int64_t>();
  a.y = y.mutable_data_ptr();
  a.tokens = ids.numel();
  a.vocab = table.size(0);
  a.columns = table.size(1);
  a.element = element(table);
  launched(kernels::embedding_forward(a, stream_of(table)), "embedding_forward");
  return y;
}

at::Tensor embedding_backward(const at::Tensor& dy, const at::Tensor& ids, int64_t rows) {
  const c10::cuda::CUDAGuard guard(dy.device());
  const at::Tensor gradient = dy.contiguous();
  const int64_t columns = dy.size(-1);
  at::Tensor d_table = at::zeros({rows, columns}, dy.options());
  const size_t bytes = kernels::embedding_backward_workspace(ids.numel(), columns);
  at::Tensor workspace = at::empty({static_cast<int64_t>(bytes)}, dy.options().dtype(at::kByte));
  kernels::EmbeddingBackward a;
  a.dy = gradient.const_data_ptr();
  a.ids = ids.const_data_ptr<int64_t>();
  a.d_table = d_table.mutable_data_ptr();
  a.workspace = workspace.mutable_data_ptr();
  a.tokens = ids.numel();
  a.vocab = rows;
  a.columns = columns;
  a.element = a.table_element = element(dy);
  launched(kernels::embedding_backward(a, stream_of(dy)), "embedding_backward");
  return d_table;
}

bool suits_bert_embedding(const BertTables& t) {
  constexpr int64_t kWidest = 2048;
  const int64_t width = t.word.size(1), pack = 16 / t.word.element_size();
  for (const at::Tensor& x : {t.word, t.position, t.type, t.gamma, t.beta})
    if (!x.is_contiguous() || x.scalar_type() != t.word.scalar_type() || !kernels::aligned16(x.const_data_ptr()))
      return false;
  return width % pack == 0 && width <= kWidest;
}

BertRows bert_embedding(const BertTables& tables, const std::vector<at::Tensor>& indices, double eps,
                        const Dropout& dropout, uint64_t stream) {
  const c10::cuda::CUDAGuard guard(tables.word.device());
  const int64_t b = indices[0].size(0), s = indices[0].size(1), width = tables.word.size(1);
  const auto options = tables.word.options();
  BertRows rows{at::empty({b, s, width}, options), at::empty({b, s, width}, options),
                at::empty({b, s, 1}, options.dtype(at::kFloat)), at::empty({b, s, 1}, options.dtype(at::kFloat))};
  kernels::BertEmbedding a;
  a.word = tables.word.const_data_ptr();
  a.position = tables.position.const_data_ptr();
  a.type = tables.type.const_data_ptr();
  a.gamma = tables.gamma.const_data_ptr();
  a.beta = tables.beta.const_data_ptr();
  a.ids = indices[0].const_data_ptr<int64_t>();
  a.positions = indices[1].const_data_ptr<int64_t>();
  a.types = indices[2].const_data_ptr<int64_t>();
  a.sum = rows.sum.mutable_data_ptr();
  a.y = rows.y.mutable_data_ptr();
  a.mean = rows.mean.mutable_data_ptr<float>();
  a.rstd = rows.rstd.mutable_data_ptr<float>();
  if (dropout.active()) {
    const DropoutKey key = dropout_key(dropout, stream);
    a.sample_ids = dropout.sample_ids_B.const_data_ptr<int64_t>();
    a.rows_per_sample = s;
    a.t0 = key.t0;
    a.t1 = key.t1;
    a.threshold = key.threshold;
    a.scale = static_cast<float>(key.scale);
  }
  a.rows = b * s;
  a.columns = width;
  a.vocab = tables.word.size(0);
  a.max_positions = tables.position.size(0);
  a.num_types = tables.type.size(0);
  a.eps = static_cast<float>(eps);
  a.element = element(tables.word);
  launched(kernels::bert_embedding_forward(a, stream_of(tables.word)), "bert_embedding_forward");
  return rows;
}

}  // namespace trireme::bridge
