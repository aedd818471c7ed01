#include "embedding_launch.h"

#include "kernels/embedding/embedding.h"
#include "launch.h"
#include "trireme/base/error.h"

#include <ATen/ATen.h>
#include <c10/cuda/CUDAGuard.h>

namespace trireme::launch {

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

void embedding_backward(const at::Tensor& dy, const at::Tensor& ids, const GradientTarget& target) {
  const c10::cuda::CUDAGuard guard(dy.device());
  const at::Tensor gradient = dy.contiguous();
  const int64_t columns = dy.size(-1);
  if (!target.adds) target.sum.zero_();
  const size_t bytes = kernels::embedding_backward_workspace(ids.numel(), columns);
  at::Tensor workspace = at::empty({static_cast<int64_t>(bytes)}, dy.options().dtype(at::kByte));
  kernels::EmbeddingBackward a;
  a.dy = gradient.const_data_ptr();
  a.ids = ids.const_data_ptr<int64_t>();
  a.d_table = target.sum.mutable_data_ptr();
  a.workspace = workspace.mutable_data_ptr();
  a.tokens = ids.numel();
  a.vocab = target.sum.size(0);
  a.columns = columns;
  a.accumulate = target.adds;
  a.element = element(dy);
  a.table_element = element(target.sum);
  launched(kernels::embedding_backward(a, stream_of(dy)), "embedding_backward");
}

BertEmbeddingRows bert_embedding(const BertTables& tables, const BertTokens& tokens, double eps,
                                 const Dropout& dropout) {
  const c10::cuda::CUDAGuard guard(tables.word.device());
  const int64_t t = tokens.ids.size(0), width = tables.word.size(1);
  const auto options = tables.word.options();
  BertEmbeddingRows rows{at::empty({t, width}, options), at::empty({t, width}, options),
                         at::empty({t, 1}, options.dtype(at::kFloat)), at::empty({t, 1}, options.dtype(at::kFloat))};
  kernels::BertEmbedding a;
  a.word = tables.word.const_data_ptr();
  a.position = tables.position.const_data_ptr();
  a.type = tables.type.const_data_ptr();
  a.gamma = tables.gamma.const_data_ptr();
  a.beta = tables.beta.const_data_ptr();
  a.ids = tokens.ids.const_data_ptr<int64_t>();
  a.positions = tokens.positions.const_data_ptr<int64_t>();
  a.types = tokens.types.const_data_ptr<int64_t>();
  a.sum = rows.sum.mutable_data_ptr();
  a.y = rows.y.mutable_data_ptr();
  a.mean = rows.mean.mutable_data_ptr<float>();
  a.rstd = rows.rstd.mutable_data_ptr<float>();
  if (dropout.active()) {
    const DropoutKey key = dropout_key(dropout);
    const at::Tensor& ids = dropout.sample_ids_B;
    TRIREME_CHECK(ids.defined() && ids.numel() > 0 && t % ids.numel() == 0, "dropout of ", t,
                  " tokens needs sample ids whose number divides them");
    a.sample_ids = ids.const_data_ptr<int64_t>();
    a.rows_per_sample = t / ids.numel();
    a.t0 = key.t0;
    a.t1 = key.t1;
    a.threshold = key.threshold;
    a.scale = static_cast<float>(key.scale);
  }
  a.rows = t;
  a.columns = width;
  a.vocab = tables.word.size(0);
  a.max_positions = tables.position.size(0);
  a.num_types = tables.type.size(0);
  a.eps = static_cast<float>(eps);
  a.element = element(tables.word);
  launched(kernels::bert_embedding_forward(a, stream_of(tables.word)), "bert_embedding_forward");
  return rows;
}

}  // namespace trireme::launch
