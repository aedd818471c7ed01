#pragma once
// Rows of a matrix by index, with a deterministic gradient.

#include <ATen/core/Tensor.h>

namespace trireme {

/// y[.., :] = table[ids[..], :]. table [V, D] of any floating dtype, ids int64 of any shape, values in [0, V). On sm_90
/// an id outside gives a row of NaN, which the non-finite check finds; elsewhere LibTorch throws. The gradient of a row
/// is the sum over its occurrences, fp32 inside, rounded once; on sm_90 in a fixed order.
at::Tensor embed(const at::Tensor& table_VD, const at::Tensor& ids);

/// x [T, D], the embedding of ids [T] by a frozen table whose rows from `begin` on have the values of `rows` [N, D]:
/// the gradient goes to `rows`.
at::Tensor train_rows(const at::Tensor& x_TD, const at::Tensor& ids, const at::Tensor& rows_ND, int64_t begin);

/// x[rows[p], :], e.g. the positions whose words an MLM head predicts; gradient as for embed(). x [T, D], rows int64
/// [P].
at::Tensor gather_rows(const at::Tensor& x_TD, const at::Tensor& rows_P);

}  // namespace trireme
