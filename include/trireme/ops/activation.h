#pragma once

namespace trireme {

/// The activation between the two products of an MLP. kSwiglu (Shazeer 2020): silu(gate) * up of a projection [.., 2F]
/// laid out gate | up. GELU (Hendrycks & Gimpel 2016): kGeluErf is exact, kGeluTanh its tanh approximation.
enum class Activation { kNone, kSwiglu, kGeluErf, kGeluTanh };

}  // namespace trireme
