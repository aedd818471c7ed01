#include "trireme/ops/embedding.h"

#include "kernel_bridge.h"
#include "trireme/base/error.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

namespace trireme {

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

struct Embedding : torch::autograd::Function<Embedding> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& table, const at::Tensor& ids) {
    ctx->save_for_backward({ids});
    ctx->saved_data["rows"] = table.size(0);
    return bridge::embedding(table, ids);
  }
  static variable_list backward(AutogradContext* ctx, variable_list gradients) {
    const at::Tensor ids = ctx->get_saved_variables()[0];
    return {bridge::embedding_backward(gradients[0], ids, ctx->saved_data["rows"].toInt()), at::Tensor()};
  }
};

}  // namespace

at::Tensor embed(const at::Tensor& table_VD, const at::Tensor& ids) {
  TRIREME_CHECK(table_VD.dim() == 2 && ids.scalar_type() == at::kLong, "embedding: table ", table_VD.sizes(), ", ids ",
                ids.scalar_type());
  if (bridge::has_kernels(table_VD) && table_VD.is_contiguous()) return Embedding::apply(table_VD, ids.contiguous());
  return at::embedding(table_VD, ids);
}

at::Tensor gather_rows(const at::Tensor& x_TD, const at::Tensor& rows_P) {
  TRIREME_CHECK(rows_P.dim() == 1, "gather_rows: rows of ", rows_P.dim(), " dimensions");
  return embed(x_TD, rows_P);
}

}  // namespace trireme
