#include "fp8_products.h"

#include "bridge_tools.h"
#include "kernels/fp8_operands/fp8_operands.h"

#include <ATen/ATen.h>
#include <c10/cuda/CUDAGuard.h>

namespace trireme::bridge {

Fp8Operand fp8_operand(const OperandSource& source, const Fp8Tensor& scaling, bool want_sums) {
  const c10::cuda::CUDAGuard guard(source.x.device());
  const at::Tensor& x = source.x;
  const int64_t num_rows = x.size(0), columns = x.size(1);
  TRIREME_CHECK(num_rows % 16 == 0 && columns % 16 == 0, "FP8 codes of a matrix ", x.sizes(),
                " need multiples of 16 on a GPU: use precision.encoder: compute");
  const auto codes = x.options().dtype(scaling.gradient ? at::kFloat8_e5m2 : at::kFloat8_e4m3fn);
  Fp8Operand result{at::empty({num_rows, columns}, codes), at::empty({columns, num_rows}, codes), scaling.inverse, {}};
  at::Tensor workspace;
  kernels::Fp8Operands a;
  a.x = x.const_data_ptr();
  if (source.bias.defined()) {
    a.values = source.dy.defined() ? kernels::OperandValues::kGeluGradient : kernels::OperandValues::kGelu;
    a.bias = source.bias.const_data_ptr();
    if (source.dy.defined()) a.dy = source.dy.const_data_ptr();
    a.gelu = source.form == GeluForm::kTanh ? kernels::GeluKind::kTanh : kernels::GeluKind::kErf;
  }
  a.data = static_cast<uint8_t*>(result.data.mutable_data_ptr());
  a.transposed = static_cast<uint8_t*>(result.transposed.mutable_data_ptr());
  a.scale = scaling.scale.const_data_ptr<float>();
  a.amax = scaling.amax.mutable_data_ptr<float>();
  if (want_sums) {
    result.sums = at::empty({columns}, x.options());
    workspace = at::empty({kernels::fp8_operands_workspace(num_rows, columns)}, x.options().dtype(at::kFloat));
    a.sums = result.sums.mutable_data_ptr();
    a.workspace = workspace.mutable_data_ptr<float>();
  }
  a.rows = num_rows;
  a.columns = columns;
  a.element = element(x);
  a.format = scaling.gradient ? kernels::Fp8Format::kE5M2 : kernels::Fp8Format::kE4M3;
  launched(kernels::fp8_operands(a, stream_of(x)), "fp8_operands");
  return result;
}

}  // namespace trireme::bridge
