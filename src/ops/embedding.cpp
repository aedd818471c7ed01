#include "trireme/ops/embedding.h"

#include "embedding_launch.h"
#include "trireme/base/error.h"
#include "trireme/nn/autograd_node.h"
#include "trireme/ops/dispatch.h"

#include <ATen/ATen.h>

namespace trireme {

namespace {

struct Embedding {
  Input table;
  at::Tensor ids;
  int64_t rows;

  variable_list forward() { return {launch::embedding(std::exchange(table.value, {}), ids)}; }
  void backward(const variable_list& d_outputs, Gradients& gradients) {
    gradients.set(table, launch::embedding_backward(d_outputs[0], ids, rows));
  }
};

}  // namespace

at::Tensor embed(const at::Tensor& table_VD, const at::Tensor& ids) {
  TRIREME_CHECK(table_VD.dim() == 2 && ids.scalar_type() == at::kLong, "embedding: table ", table_VD.sizes(), ", ids ",
                ids.scalar_type());
  const Choice choice =
      Dispatch("embedding", table_VD).needs(table_VD.is_contiguous(), "the table is not contiguous").choice();
  if constexpr (kCudaBuild) {
    if (choice.kernel()) {
      InputList inputs;
      Embedding node{inputs.add(table_VD), ids.contiguous(), table_VD.size(0)};
      return run_node(std::move(node), inputs)[0];
    }
  }
  return at::embedding(table_VD, ids);
}

at::Tensor gather_rows(const at::Tensor& x_TD, const at::Tensor& rows_P) {
  TRIREME_CHECK(rows_P.dim() == 1, "gather_rows: rows has ", rows_P.dim(), " dimensions, not 1");
  return embed(x_TD, rows_P);
}

}  // namespace trireme
