#pragma once
// Carries a plain C++ value through AutogradContext::saved_data.

#include <ATen/core/ivalue.h>

#include <utility>

namespace trireme {

template <class T>
struct Capsule : torch::CustomClassHolder {
  explicit Capsule(T v) : value(std::move(v)) {}
  T value;
};

template <class T>
at::IValue to_capsule(T value) {
  return at::IValue::make_capsule(c10::make_intrusive<Capsule<T>>(std::move(value)));
}

template <class T>
T& from_capsule(const at::IValue& ivalue) {
  return static_cast<Capsule<T>*>(ivalue.toCapsule().get())->value;
}

}  // namespace trireme
