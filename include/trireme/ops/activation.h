#pragma once

namespace trireme {

/// What stands between the two products of an MLP. kSwiglu: silu(gate) * up of a projection [.., 2F] laid out gate |
/// up. GELU (Hendrycks & Gimpel 2016): exact, or by its tanh approximation.
enum class Activation { kNone, kSwiglu, kGeluErf, kGeluTanh };

}  // namespace trireme
