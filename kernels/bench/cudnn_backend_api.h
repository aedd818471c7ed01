#pragma once
// The part of cuDNN's backend API that the bench needs, resolved from the library that LibTorch has loaded.

#include <cudnn_backend.h>
#include <dlfcn.h>

#include <cstdint>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace trireme::kernels::cudnn {

/// cuDNN's entry points, resolved at run time so that nothing links to cuDNN.
struct Library {
  decltype(&cudnnCreate) create = nullptr;
  decltype(&cudnnDestroy) destroy = nullptr;
  decltype(&cudnnGetVersion) version = nullptr;
  decltype(&cudnnGetErrorString) text = nullptr;
  decltype(&cudnnBackendCreateDescriptor) create_descriptor = nullptr;
  decltype(&cudnnBackendDestroyDescriptor) destroy_descriptor = nullptr;
  decltype(&cudnnBackendFinalize) finalize = nullptr;
  decltype(&cudnnBackendSetAttribute) set = nullptr;
  decltype(&cudnnBackendGetAttribute) get = nullptr;
  decltype(&cudnnBackendExecute) execute = nullptr;

  Library() {
    void* const library = dlopen("libcudnn.so.9", RTLD_NOW);
    if (library == nullptr) fail("dlopen", dlerror());
    const auto find = [&](auto& entry, const char* name) {
      entry = reinterpret_cast<std::remove_reference_t<decltype(entry)>>(dlsym(library, name));
      if (entry == nullptr) fail("dlsym", name);
    };
    find(create, "cudnnCreate"), find(destroy, "cudnnDestroy");
    find(version, "cudnnGetVersion");
    find(text, "cudnnGetErrorString");
    find(create_descriptor, "cudnnBackendCreateDescriptor");
    find(destroy_descriptor, "cudnnBackendDestroyDescriptor");
    find(finalize, "cudnnBackendFinalize"), find(set, "cudnnBackendSetAttribute");
    find(get, "cudnnBackendGetAttribute"), find(execute, "cudnnBackendExecute");
  }
  void check(cudnnStatus_t status, const char* what) const {
    if (status != CUDNN_STATUS_SUCCESS) fail(what, text(status));
  }
  [[noreturn]] static void fail(const char* what, const char* why) {
    throw std::runtime_error(std::string(what) + ": " + why);
  }
};
inline const Library& library() {
  static const Library loaded;
  return loaded;
}

class Descriptor {
 public:
  explicit Descriptor(cudnnBackendDescriptorType_t type) {
    library().check(library().create_descriptor(type, &descriptor_), "descriptor");
  }
  Descriptor(Descriptor&& other) noexcept : descriptor_(std::exchange(other.descriptor_, nullptr)) {}
  Descriptor& operator=(Descriptor&&) = delete;
  ~Descriptor() {
    if (descriptor_ != nullptr) library().destroy_descriptor(descriptor_);
  }
  template <class V>
  Descriptor& set(cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type, const std::vector<V>& values) {
    library().check(library().set(descriptor_, name, type, static_cast<int64_t>(values.size()), values.data()),
                    "attribute");
    return *this;
  }
  Descriptor& set(cudnnBackendAttributeName_t name, const Descriptor& value) {
    return set(name, CUDNN_TYPE_BACKEND_DESCRIPTOR, std::vector<cudnnBackendDescriptor_t>{value.get()});
  }
  Descriptor& finalize(const char* what) {
    library().check(library().finalize(descriptor_), what);
    return *this;
  }
  bool try_finalize() { return library().finalize(descriptor_) == CUDNN_STATUS_SUCCESS; }
  template <class V>
  V get(cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type) const {
    V value{};
    int64_t count = 0;
    library().check(library().get(descriptor_, name, type, 1, &count, &value), "attribute");
    return value;
  }
  cudnnBackendDescriptor_t get() const { return descriptor_; }

 private:
  cudnnBackendDescriptor_t descriptor_ = nullptr;
};

/// Descriptor of a [rows, columns] matrix in the four dimensions of cuDNN's norms; `id` identifies it in a call.
inline Descriptor tensor(int64_t id, int64_t rows, int64_t columns, cudnnDataType_t type, bool by_value = false) {
  Descriptor d(CUDNN_BACKEND_TENSOR_DESCRIPTOR);
  d.set(CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_TYPE_INT64, std::vector<int64_t>{id});
  d.set(CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_TYPE_DATA_TYPE, std::vector<cudnnDataType_t>{type});
  d.set(CUDNN_ATTR_TENSOR_DIMENSIONS, CUDNN_TYPE_INT64, std::vector<int64_t>{rows, columns, 1, 1});
  d.set(CUDNN_ATTR_TENSOR_STRIDES, CUDNN_TYPE_INT64, std::vector<int64_t>{columns, 1, columns, columns});
  d.set(CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, CUDNN_TYPE_INT64, std::vector<int64_t>{by_value ? 4 : 16});
  const char value = by_value;  // cuDNN reads one byte
  library().check(library().set(d.get(), CUDNN_ATTR_TENSOR_IS_BY_VALUE, CUDNN_TYPE_BOOLEAN, 1, &value), "by value");
  d.finalize("tensor");
  return d;
}

}  // namespace trireme::kernels::cudnn
