#include "trireme/ops/bert_embedding.h"

#include "embedding_launch.h"
#include "trireme/base/error.h"
#include "trireme/nn/autograd_node.h"
#include "trireme/ops/dispatch.h"

#include <ATen/ATen.h>

namespace trireme {

namespace {

constexpr int64_t kWidestRow = 2048;

bool contiguous_and_alike(const BertTables& t) {
  for (const at::Tensor& x : {t.word, t.position, t.type, t.gamma, t.beta})
    if (!x.is_contiguous() || x.scalar_type() != t.word.scalar_type() ||
        reinterpret_cast<uintptr_t>(x.const_data_ptr()) % 16 != 0)
      return false;
  return true;
}

struct FusedBertEmbedding {
  Input word, position, type, gamma, beta;
  BertTokens tokens;
  double eps;
  Dropout dropout;
  at::Tensor sum, mean, rstd;

  variable_list forward() {
    const BertEmbeddingRows rows =
        launch::bert_embedding({word.value, position.value, type.value, gamma.value, beta.value}, tokens, eps, dropout);
    sum = rows.sum;
    mean = rows.mean;
    rstd = rows.rstd;
    return {rows.y};
  }

  void backward(const variable_list& d_outputs, Gradients& gradients) {
    const at::Tensor dy = dropout.active() ? apply_dropout(d_outputs[0], dropout) : d_outputs[0].contiguous();
    const auto [d_sum, d_gamma, d_beta] =
        at::native_layer_norm_backward(dy, sum, {dy.size(-1)}, mean, rstd, gamma.value, beta.value, {true, true, true});
    const auto set_table = [&](const Input& table, const at::Tensor& ids) {
      if (gradients.wanted(table)) gradients.set(table, launch::embedding_backward(d_sum, ids, table.value.size(0)));
    };
    set_table(word, tokens.ids);
    set_table(position, tokens.positions);
    set_table(type, tokens.types);
    gradients.set(gamma, d_gamma);
    gradients.set(beta, d_beta);
  }
};

}  // namespace

at::Tensor bert_embedding(const BertTables& tables, const BertTokens& tokens, double eps, const Dropout& dropout) {
  TRIREME_CHECK(tokens.ids.dim() == 1 && tokens.positions.sizes() == tokens.ids.sizes() &&
                    tokens.types.sizes() == tokens.ids.sizes(),
                "BERT embedding: ids ", tokens.ids.sizes(), ", positions ", tokens.positions.sizes(), ", types ",
                tokens.types.sizes());
  const int64_t width = tables.word.size(1);
  const Choice choice =
      Dispatch("bert_embedding", tables.word)
          .needs(contiguous_and_alike(tables), "the tables are not contiguous, aligned and of one dtype")
          .needs(width % (16 / tables.word.element_size()) == 0 && width <= kWidestRow,
                 "the width is above 2,048 or not a multiple of 16 bytes")
          .choice();
  if constexpr (kCudaBuild) {
    if (choice.kernel()) {
      InputList inputs;
      const Input word = inputs.add(tables.word), position = inputs.add(tables.position),
                  type = inputs.add(tables.type), gamma = inputs.add(tables.gamma), beta = inputs.add(tables.beta);
      const BertTokens kept{tokens.ids.contiguous(), tokens.positions.contiguous(), tokens.types.contiguous()};
      FusedBertEmbedding node{word, position, type, gamma, beta, kept, eps, dropout, {}, {}, {}};
      return run_node(std::move(node), inputs)[0];
    }
  }
  const at::Tensor sum = at::embedding(tables.word, tokens.ids) + at::embedding(tables.position, tokens.positions) +
                         at::embedding(tables.type, tokens.types);
  const at::Tensor y = at::layer_norm(sum, {sum.size(-1)}, tables.gamma, tables.beta, eps);
  return dropout.active() ? recorded_dropout(y, dropout) : y;
}

}  // namespace trireme
