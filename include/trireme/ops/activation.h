#pragma once

namespace trireme {

/// The activation between the two products of an MLP. kSwiglu (Shazeer 2020): silu(gate) * up of a projection [.., 2F]
/// laid out gate | up; kGegluTanh: kGeluTanh of the gate instead. GELU (Hendrycks & Gimpel 2016): kGeluErf is exact,
/// kGeluTanh its tanh approximation.
enum class Activation { kNone, kSwiglu, kGegluTanh, kGeluErf, kGeluTanh };

/// Whether the first product computes gate and up projections.
constexpr bool is_gated(Activation activation) {
  return activation == Activation::kSwiglu || activation == Activation::kGegluTanh;
}

}  // namespace trireme
