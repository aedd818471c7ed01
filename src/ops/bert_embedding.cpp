#include "trireme/ops/bert_embedding.h"

#include "capsule.h"
#include "kernel_bridge.h"
#include "trireme/base/error.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

namespace trireme {

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

/// apply_dropout() with its gradient.
struct RecordedDropout : torch::autograd::Function<RecordedDropout> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x, const Dropout& dropout, int64_t stream) {
    ctx->saved_data["dropout"] = to_capsule(dropout);
    ctx->saved_data["stream"] = stream;
    return apply_dropout(x, dropout, static_cast<uint64_t>(stream));
  }
  static variable_list backward(AutogradContext* ctx, variable_list gradients) {
    const Dropout& dropout = from_capsule<Dropout>(ctx->saved_data["dropout"]);
    const auto stream = static_cast<uint64_t>(ctx->saved_data["stream"].toInt());
    return {apply_dropout(gradients[0], dropout, stream), at::Tensor(), at::Tensor()};
  }
};

struct FusedEmbedding : torch::autograd::Function<FusedEmbedding> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& word, const at::Tensor& position,
                            const at::Tensor& type, const at::Tensor& gamma, const at::Tensor& beta,
                            const std::vector<at::Tensor>& indices, double eps, const Dropout& dropout,
                            int64_t stream) {
    const bridge::BertRows rows = bridge::bert_embedding({word, position, type, gamma, beta}, indices, eps, dropout,
                                                         static_cast<uint64_t>(stream));
    ctx->save_for_backward({indices[0], indices[1], indices[2], rows.sum, rows.mean, rows.rstd, gamma, beta});
    ctx->saved_data["rows"] = std::vector<int64_t>{word.size(0), position.size(0), type.size(0)};
    ctx->saved_data["dropout"] = to_capsule(dropout);
    ctx->saved_data["stream"] = stream;
    return rows.y;
  }
  static variable_list backward(AutogradContext* ctx, variable_list gradients) {
    const variable_list saved = ctx->get_saved_variables();
    const Dropout& dropout = from_capsule<Dropout>(ctx->saved_data["dropout"]);
    const auto stream = static_cast<uint64_t>(ctx->saved_data["stream"].toInt());
    const at::Tensor dy = dropout.active() ? apply_dropout(gradients[0], dropout, stream) : gradients[0].contiguous();
    const auto [d_sum, d_gamma, d_beta] = at::native_layer_norm_backward(
        dy, saved[3], {dy.size(-1)}, saved[4], saved[5], saved[6], saved[7], {true, true, true});
    const std::vector<int64_t> rows = ctx->saved_data["rows"].toIntVector();
    variable_list result(9);
    for (size_t i = 0; i < 3; ++i)
      if (ctx->needs_input_grad(i)) result[i] = bridge::embedding_backward(d_sum, saved[i], rows[i]);
    result[3] = d_gamma;
    result[4] = d_beta;
    return result;
  }
};

}  // namespace

at::Tensor bert_embedding(const BertTables& tables, const at::Tensor& ids_BS, const at::Tensor& positions_BS,
                          const at::Tensor& types_BS, double eps, const Dropout& dropout, uint64_t stream) {
  TRIREME_CHECK(ids_BS.dim() == 2 && positions_BS.sizes() == ids_BS.sizes() && types_BS.sizes() == ids_BS.sizes(),
                "BERT embedding: ids ", ids_BS.sizes(), ", positions ", positions_BS.sizes(), ", types ",
                types_BS.sizes());
  if (bridge::has_kernels(tables.word) && bridge::suits_bert_embedding(tables))
    return FusedEmbedding::apply(
        tables.word, tables.position, tables.type, tables.gamma, tables.beta,
        std::vector<at::Tensor>{ids_BS.contiguous(), positions_BS.contiguous(), types_BS.contiguous()}, eps, dropout,
        static_cast<int64_t>(stream));
  const at::Tensor sum = at::embedding(tables.word, ids_BS) + at::embedding(tables.position, positions_BS) +
                         at::embedding(tables.type, types_BS);
  const at::Tensor y = at::layer_norm(sum, {sum.size(-1)}, tables.gamma, tables.beta, eps);
  return dropout.active() ? RecordedDropout::apply(y, dropout, static_cast<int64_t>(stream)) : y;
}

}  // namespace trireme
