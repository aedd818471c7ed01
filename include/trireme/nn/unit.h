#pragma once
// The interface between models, which know no ranks, and the store of their weights (fsdp/), which knows no models.
//
// A model lists its weights as units (embedding, one block, head, adapters). It brackets each use of a unit with
// enter_unit()/leave_unit(). Between these calls the store provides the unit's whole tensors, in forward and in
// backward.

#include "trireme/nn/weight.h"

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

namespace trireme {

/// Rows of a parameter that are a separate tensor in checkpoints. A fused weight (qkv, gate_up) has several.
struct ParameterPart {
  std::string name;  // Hugging Face name, "model.layers.0.self_attn.q_proj.weight"
  int64_t rows;      // extent on dim 0
};

enum class Init { kNormal, kUniform, kOnes, kZeros };

struct ParameterSpec {
  std::string name;                  // inside the unit: "qkv_proj"
  std::vector<int64_t> shape;        // [out, in] or [width]
  std::vector<ParameterPart> parts;  // stacked on dim 0; rows sum to shape[0]
  Init init = Init::kNormal;
  double init_scale = 0.02;  // kNormal: standard deviation; kUniform: bound
  bool decay = true;         // weight decay applies (matrices and embeddings; not norms and biases)
  /// The matrix of one linear layer (ops/layers/linear.h) in each forward: its products may run in FP8, and its
  /// gradient may go to a GradientSink.
  bool linear = false;
  /// Another parameter, that so many operations read in each forward, and whose gradient each of them gives to a
  /// GradientSink; 0: autograd has its gradient.
  int given_gradients = 0;
  /// Rows from this one on are padding: they start as zeros, and model directories do not have them (requires a single
  /// part); -1: none.
  int64_t zero_rows_from = -1;
  bool transposed = false;  // checkpoint files keep the matrix [in, out]
  /// Of a layer's matrix: the rows of the matrices that it stacks on dim 0 (q, k, v; gate, up), also where files have
  /// them as one tensor. An optimizer may update each as a whole. Empty for embeddings, heads and vectors.
  std::vector<int64_t> matrix_rows = {};
  int64_t numel() const;
};

struct UnitSpec {
  std::string name;  // "embed", "layers.7", "head", "adapters"
  std::vector<ParameterSpec> parameters;
  bool trained = false;
  bool replicated = false;  // never sharded (adapters)
  bool fp32 = false;        // used in fp32, not in the compute dtype (vectors of few elements)
  bool keep = false;        // stays gathered from its first use in a step to the end of backward (tied embedding)
  // false: backward needs no gather (an embedding's gradient needs only the token ids)
  bool backward_reads_weights = true;
  int64_t numel() const;
  bool has_linear() const;       // has a matrix of a linear layer
  int64_t matrix_numel() const;  // elements of parameters with matrix_rows
  /// The unit with only its matrices of linear layers; the unit with only its other parameters.
  UnitSpec matrices() const;
  UnitSpec vectors() const;
};

/// The weights of a model during computation.
class UnitStore {
 public:
  virtual ~UnitStore() = default;
  /// The unit's tensors in the order of its specs: whole, in the compute dtype or as their state says (trained
  /// replicated units too). The tensor objects stay the same for the whole run; their contents are valid only between
  /// enter_unit() and leave_unit(), and between the corresponding points of backward.
  virtual const std::vector<at::Tensor>& parameters(int unit) = 0;
  /// How each parameter is stored and multiplied, in the same order; constant over the run.
  virtual const std::vector<WeightState>& weight_states(int unit) = 0;
  virtual void pre_forward(int unit) = 0;
  virtual void post_forward(int unit) = 0;
  virtual void pre_backward(int unit) = 0;
  virtual void post_backward(int unit) = 0;
};

/// Identity on x. Forward calls store.pre_forward(unit). Backward, when the unit has computed x's gradient, calls
/// store.post_backward(unit).
at::Tensor enter_unit(const at::Tensor& x, UnitStore& store, int unit);
/// Identity on y. Forward calls store.post_forward(unit). Backward, before the unit's own backward, calls
/// store.pre_backward(unit).
at::Tensor leave_unit(const at::Tensor& y, UnitStore& store, int unit);

/// A store of whole tensors in the compute dtype on one device, for tests, generation and merge checks.
class WholeUnitStore : public UnitStore {
 public:
  explicit WholeUnitStore(std::vector<std::vector<at::Tensor>> units);
  const std::vector<at::Tensor>& parameters(int unit) override { return units_.at(static_cast<size_t>(unit)); }
  const std::vector<WeightState>& weight_states(int unit) override { return states_.at(static_cast<size_t>(unit)); }
  /// Replaces the state of one parameter, for tests of recipes.
  void set_state(int unit, int parameter, WeightState state);
  void pre_forward(int) override {}
  void post_forward(int) override {}
  void pre_backward(int) override {}
  void post_backward(int) override {}

 private:
  std::vector<std::vector<at::Tensor>> units_;
  std::vector<std::vector<WeightState>> states_;
};

/// A unit's tensors as a block's forward reads them: the store's tensors, or the aliases that recomputed() passes.
struct UnitTensors {
  at::TensorList values;
  const std::vector<WeightState>* states;

  const at::Tensor& operator[](int parameter) const { return values[static_cast<size_t>(parameter)]; }
  Weight weight(int parameter) const {
    return {values[static_cast<size_t>(parameter)], states->at(static_cast<size_t>(parameter))};
  }
};

}  // namespace trireme
