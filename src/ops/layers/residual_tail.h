#pragma once
// Private to ops/: the end of a sub-layer, where a linear layer's output is added to the residual stream inside a node:
//
//   y = post_norm(residual + dropout(x W^T + b))        post_norm: none, or a layer norm

#include "layers/linear_layer.h"
#include "layers/norm_layer.h"
#include "norm_rows.h"

#include <ATen/core/Tensor.h>

namespace trireme {

class ResidualTail {
 public:
  ResidualTail() = default;
  ResidualTail(const Dropout& dropout, const Norm& post_norm, const at::Tensor& residual, const char* what,
               InputList& inputs);

  at::Tensor forward(LinearLayer& linear, const Operand& x, const at::Tensor& residual);

  struct Parts {
    Operand d_branch;  // gradient of the linear layer's output, in the forms that its backward reads
    at::Tensor d_residual;
  };
  Parts backward(const LinearLayer& linear, const at::Tensor& dy, Gradients& gradients);

 private:
  Dropout dropout_;
  NormLayer post_norm_;
  LayerNormed kept_;
};

}  // namespace trireme
