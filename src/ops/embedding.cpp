#include "trireme/ops/embedding.h"

#include "embedding_launch.h"
#include "matmul/operand.h"
#include "matmul/product.h"
#include "norm_rows.h"
#include "trireme/base/error.h"
#include "trireme/nn/autograd_node.h"
#include "trireme/ops/dispatch.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>

namespace trireme {

namespace {

constexpr int64_t kIndicators = 1 << 22;  // of tokens and trained rows, held at once in backward

/// Without those of `padding`, whose row gets no gradient: embedding_backward() ignores ids outside the table.
[[maybe_unused]] at::Tensor learned(const at::Tensor& ids, int64_t padding) {
  return padding < 0 ? ids : ids.masked_fill(ids.eq(padding), -1);
}

/// By our kernel, or by the library. The library's gradient of 16 bits adds in these 16 bits (a CPU the occurrences of
/// a row, a GPU partial sums), so it is computed in fp32.
struct Embedding {
  Input table;
  at::Tensor ids;
  int64_t rows;
  bool kernel;
  GradientSink* sink;
  int64_t padding;

  variable_list forward() {
    const at::Tensor values = std::exchange(table.value, {});
    if constexpr (kCudaBuild)
      if (kernel) return {launch::embedding(values, ids)};
    return {at::embedding(values, ids)};
  }
  void backward(const variable_list& d_outputs, Gradients& gradients) {
    const at::Tensor& dy = d_outputs[0];
    if (sink == nullptr) {
      at::Tensor d_table = at::empty({rows, dy.size(-1)}, dy.options());
      add_gradient(dy, {d_table});
      return gradients.set(table, d_table);
    }
    add_gradient(dy, sink->target());
    sink->written();
  }
  void add_gradient(const at::Tensor& dy, const GradientTarget& target) const {
    if constexpr (kCudaBuild)
      if (kernel) return launch::embedding_backward(dy, learned(ids, padding), target);
    const at::Tensor wide = dy.to(accumulate_type(dy));
    write_gradient(target, at::embedding_dense_backward(wide, ids, rows, padding, false).to(dy.scalar_type()));
  }
};

/// Identity on the embedded tokens; the gradient of tokens whose id is among the trained rows goes to these rows.
struct RowsNode {
  Input x, rows;
  at::Tensor ids, row_ids;

  variable_list forward() {
    rows.value = at::Tensor();
    return {std::move(x.value)};
  }
  void backward(const variable_list& d_outputs, Gradients& gradients) {
    if (gradients.wanted(x)) gradients.set(x, d_outputs[0]);
    // Products with the tokens' indicators, of some rows at a time: their sums have a fixed order, the sums of
    // index_add on a GPU do not.
    const at::Tensor& dy_TD = d_outputs[0];
    const int64_t count = row_ids.size(0);
    at::Tensor d_rows = at::empty({count, dy_TD.size(1)}, dy_TD.options());
    const int64_t at_a_time = std::max<int64_t>(1, kIndicators / std::max<int64_t>(1, dy_TD.size(0)));
    for (int64_t first = 0; first < count; first += at_a_time) {
      const int64_t part = std::min(at_a_time, count - first);
      const at::Tensor is_row =
          ids.unsqueeze(1).eq(row_ids.narrow(0, first, part).unsqueeze(0)).to(dy_TD.scalar_type());
      at::Tensor d_part = d_rows.narrow(0, first, part);
      at::mm_out(d_part, is_row.t(), dy_TD);
    }
    gradients.set(rows, d_rows);
  }
};

}  // namespace

void TrainedRows::put_into(const at::Tensor& matrix) const {
  at::NoGradGuard no_grad;
  if (!defined()) return;
  if (begin >= 0)
    matrix.narrow(0, begin, count()).copy_(values);
  else
    matrix.index_copy_(0, ids, values.to(matrix.scalar_type()));
}

at::Tensor TrainedRows::columns_of(const at::Tensor& x_TV) const {
  return begin >= 0 ? x_TV.narrow(1, begin, count()) : x_TV.index_select(1, ids);
}

at::Tensor train_rows(const at::Tensor& x_TD, const at::Tensor& ids, const TrainedRows& rows) {
  TRIREME_CHECK(x_TD.dim() == 2 && rows.values.dim() == 2 && ids.dim() == 1 && ids.size(0) == x_TD.size(0),
                "train_rows: x ", x_TD.sizes(), ", ids ", ids.sizes(), ", rows ", rows.values.sizes());
  InputList inputs;
  const Input x = inputs.add(x_TD), values = inputs.add(rows.values);
  return run_node(RowsNode{x, values, ids, rows.ids}, inputs)[0];
}

at::Tensor embed(const at::Tensor& table_VD, const at::Tensor& ids, GradientSink* sink, int64_t padding) {
  TRIREME_CHECK(table_VD.dim() == 2 && ids.scalar_type() == at::kLong, "embedding: table ", table_VD.sizes(), ", ids ",
                ids.scalar_type());
  const Choice choice =
      Dispatch("embedding", table_VD).needs(table_VD.is_contiguous(), "the table is not contiguous").choice();
  if (!choice.kernel() && sink == nullptr && table_VD.element_size() != 2) return at::embedding(table_VD, ids, padding);
  InputList inputs;
  Embedding node{inputs.add(table_VD), ids.contiguous(), table_VD.size(0), choice.kernel(), sink, padding};
  // Autograd records a node if an input requires grad.
  if (sink != nullptr) (void)inputs.add(at::empty({0}, table_VD.options()).set_requires_grad(true));
  return run_node(std::move(node), inputs)[0];
}

at::Tensor gather_rows(const at::Tensor& x_TD, const at::Tensor& rows_P) {
  TRIREME_CHECK(rows_P.dim() == 1, "gather_rows: rows has ", rows_P.dim(), " dimensions, not 1");
  return embed(x_TD, rows_P);
}

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
  GradientSink* sink;  // of the word table
  int64_t padding;
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
    const LayerNormGradients d = layer_norm_backward(dy, {{}, sum, mean.view(-1), rstd.view(-1)},
                                                     layer_norm(gamma.value, beta.value, eps), {}, {},
                                                     /*want_norm=*/true, /*want_branch_bias=*/false);
    const auto set_table = [&](const Input& table, const at::Tensor& ids) {
      if (!gradients.wanted(table)) return;
      at::Tensor d_table = at::empty_like(table.value);
      launch::embedding_backward(d.d_sum, ids, {d_table});
      gradients.set(table, d_table);
    };
    const at::Tensor words = learned(tokens.ids, padding);
    if (sink != nullptr) {
      launch::embedding_backward(d.d_sum, words, sink->target());
      sink->written();
    }
    set_table(word, words);
    set_table(position, tokens.positions);
    set_table(type, tokens.types);
    gradients.set(gamma, d.d_weight);
    gradients.set(beta, d.d_bias);
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
          .needs(dropout.sample_rows == 0, "dropout is of a slice of samples")
          .choice();
  if constexpr (kCudaBuild) {
    if (choice.kernel()) {
      InputList inputs;
      const Input word = inputs.add(tables.word), position = inputs.add(tables.position),
                  type = inputs.add(tables.type), gamma = inputs.add(tables.gamma), beta = inputs.add(tables.beta);
      const BertTokens kept{tokens.ids.contiguous(), tokens.positions.contiguous(), tokens.types.contiguous()};
      FusedBertEmbedding node{word,    position,         type,           gamma, beta, kept, eps,
                              dropout, tables.word_sink, tables.padding, {},    {},   {}};
      return run_node(std::move(node), inputs)[0];
    }
  }
  const at::Tensor sum = embed(tables.word, tokens.ids, tables.word_sink, tables.padding) +
                         embed(tables.position, tokens.positions) + embed(tables.type, tokens.types);
  const at::Tensor y = at::layer_norm(sum, {sum.size(-1)}, tables.gamma, tables.beta, eps);
  return dropout.active() ? recorded_dropout(y, dropout) : y;
}

}  // namespace trireme
