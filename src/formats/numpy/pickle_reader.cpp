#include "pickle_stack.h"

namespace trireme::pickle {

namespace {

constexpr size_t kMaxDimensions = 64;  // NumPy's own limit

/// The opcodes, and the few objects that they may construct.
class Reader : Stack {
 public:
  Reader(std::span<const std::byte> file, size_t begin, const std::filesystem::path& path) : Stack(file, begin, path) {}

  ValuePtr run() {
    for (;;) {
      opcode_at_ = at_;
      const auto opcode = take<uint8_t>();
      if (opcode == '.') break;
      execute(opcode);
      if (stack_.size() > kMaxEntries) fail("the stack has too many entries");
    }
    if (stack_.size() != 1) fail("the pickle does not end with one object");
    if (at_ != file_.size()) fail(fmt::format("{} bytes follow the pickle's end", file_.size() - at_));
    return stack_.back();
  }

 private:
  void global(std::string_view module, std::string_view name) {
    const std::string full = fmt::format("{}.{}", module, name);
    static constexpr std::string_view kAccepted[] = {"numpy.core.multiarray._reconstruct",
                                                     "numpy._core.multiarray._reconstruct",
                                                     "numpy.ndarray",
                                                     "numpy.dtype",
                                                     "numpy.core.multiarray.scalar",
                                                     "numpy._core.multiarray.scalar",
                                                     "numpy.core.numeric._frombuffer",
                                                     "numpy._core.numeric._frombuffer",
                                                     "_codecs.encode"};
    for (const std::string_view accepted : kAccepted) {
      if (full == accepted) {
        push(Global{full});
        return;
      }
    }
    fail(fmt::format("the pickle asks for {}, which token records do not need; nothing was executed", full));
  }

  void reduce() {
    const ValuePtr arguments = pop(), callable = pop();
    const auto* function = std::get_if<Global>(&callable->data);
    const auto* tuple = std::get_if<Tuple>(&arguments->data);
    if (function == nullptr || tuple == nullptr) fail("a call of an object that is not a function");
    const auto& items = tuple->items;
    if (function->name.ends_with("_reconstruct")) {
      push(Array{});
    } else if (function->name == "numpy.dtype") {
      const auto* code = items.empty() ? nullptr : std::get_if<Text>(&items[0]->data);
      if (code == nullptr) fail("a NumPy type without a name");
      push(dtype(code->text));
    } else if (function->name.ends_with("_frombuffer")) {
      frombuffer(items);
    } else if (function->name.ends_with(".scalar")) {
      scalar(items);
    } else if (function->name == "_codecs.encode") {
      encode(items);
    } else {
      fail(fmt::format("a call of {}", function->name));
    }
  }

  NumpyType dtype(std::string_view code) {
    NumpyType type;
    if (code.starts_with('<') || code.starts_with('>') || code.starts_with('|')) {
      type.big_endian = code[0] == '>';
      code.remove_prefix(1);
    }
    if (code.size() < 2 || std::string_view("iubO").find(code[0]) == std::string_view::npos || code.size() > 2)
      fail(fmt::format("NumPy type '{}' is not an integer type", code));
    type.kind = code[0];
    type.item_size = code[1] - '0';
    if (type.item_size != 1 && type.item_size != 2 && type.item_size != 4 && type.item_size != 8)
      fail(fmt::format("NumPy type '{}'", code));
    return type;
  }

  /// numpy._frombuffer(buffer, dtype, shape, order): protocol 5's form of an array.
  void frombuffer(const std::vector<ValuePtr>& items) {
    if (items.size() != 4) fail("_frombuffer needs four arguments");
    const auto* buffer = std::get_if<Bytes>(&items[0]->data);
    const auto* type = std::get_if<NumpyType>(&items[1]->data);
    const auto* shape = std::get_if<Tuple>(&items[2]->data);
    const auto* order = std::get_if<Text>(&items[3]->data);
    if (buffer == nullptr || type == nullptr || shape == nullptr || order == nullptr || type->kind == 'O')
      fail("_frombuffer with unexpected arguments");
    Array array;
    array.type = *type;
    array.shape = extents(*shape);
    array.fortran = order->text == "F";
    array.bytes = *buffer;
    finish(array);
    push(std::move(array));
  }

  /// numpy.int64(5), an element of list(array).
  void scalar(const std::vector<ValuePtr>& items) {
    const auto* type = items.size() != 2 ? nullptr : std::get_if<NumpyType>(&items[0]->data);
    const auto* bytes = items.size() != 2 ? nullptr : std::get_if<Bytes>(&items[1]->data);
    if (type == nullptr || bytes == nullptr || type->kind == 'O' ||
        static_cast<int>(bytes->data.size()) != type->item_size)
      fail("a NumPy scalar with unexpected arguments");
    const auto value = integer_at(bytes->data.data(), *type);
    if (!value) fail("a NumPy scalar of 2^63 or more");
    push(*value);
  }

  /// Protocol 2 writes bytes as latin-1 text: bytes above 127 take two bytes of UTF-8.
  void encode(const std::vector<ValuePtr>& items) {
    const auto* text = items.empty() ? nullptr : std::get_if<Text>(&items[0]->data);
    if (text == nullptr) fail("_codecs.encode without text");
    // The memo allows decoding one text many times: the total is bounded.
    decoded_ += text->text.size();
    if (decoded_ > file_.size()) fail(fmt::format("{} bytes of encoded text in a file of {}", decoded_, file_.size()));
    auto decoded = std::make_shared<std::vector<std::byte>>();
    decoded->reserve(text->text.size());
    for (size_t i = 0; i < text->text.size(); ++i) {
      const auto lead = static_cast<unsigned char>(text->text[i]);
      if (lead < 0x80) {
        decoded->push_back(static_cast<std::byte>(lead));
      } else if ((lead == 0xC2 || lead == 0xC3) && i + 1 < text->text.size()) {
        decoded->push_back(
            static_cast<std::byte>((lead & 0x3) << 6 | (static_cast<unsigned char>(text->text[++i]) & 0x3F)));
      } else {
        fail("text that is not latin-1");
      }
    }
    push(Bytes{*decoded, decoded});
  }

  std::vector<int64_t> extents(const Tuple& tuple) {
    std::vector<int64_t> shape;
    if (tuple.items.size() > kMaxDimensions) fail(fmt::format("an array of {} dimensions", tuple.items.size()));
    for (const ValuePtr& item : tuple.items) {
      const auto* extent = std::get_if<int64_t>(&item->data);
      if (extent == nullptr || *extent < 0) fail("an array extent that is not a count");
      shape.push_back(*extent);
    }
    return shape;
  }

  void finish(Array& array) {
    array.built = true;
    if (array.type.kind == 'O') return;
    int64_t bytes = array.type.item_size;
    for (const int64_t extent : array.shape)
      if (__builtin_mul_overflow(bytes, extent, &bytes)) fail("an array whose size overflows");
    if (bytes != static_cast<int64_t>(array.bytes.data.size()))
      fail(fmt::format("an array of {} bytes with {} bytes of data", bytes, array.bytes.data.size()));
  }

  void build() {
    const ValuePtr state = pop();
    Value& value = target();
    const auto* tuple = std::get_if<Tuple>(&state->data);
    if (auto* type = std::get_if<NumpyType>(&value.data)) {
      // (version, byte order, subdescriptor, names, fields, …)
      const auto* order =
          tuple == nullptr || tuple->items.size() < 2 ? nullptr : std::get_if<Text>(&tuple->items[1]->data);
      if (order == nullptr) fail("a NumPy type with an unexpected state");
      type->big_endian = order->text == ">";
      return;
    }
    auto* array = std::get_if<Array>(&value.data);
    if (array == nullptr || tuple == nullptr || tuple->items.size() != 5) fail("a state for an object that takes none");
    const auto* shape = std::get_if<Tuple>(&tuple->items[1]->data);
    const auto* type = std::get_if<NumpyType>(&tuple->items[2]->data);
    const auto* fortran = std::get_if<bool>(&tuple->items[3]->data);
    if (shape == nullptr || type == nullptr) fail("an array with an unexpected state");
    array->shape = extents(*shape);
    array->type = *type;
    array->fortran = fortran != nullptr && *fortran;
    const ValuePtr& payload = tuple->items[4];
    if (type->kind == 'O') {
      if (!std::holds_alternative<List>(payload->data)) fail("an object array without its list");
      hold(value, payload);
      array->items = payload;
    } else if (const auto* data = std::get_if<Bytes>(&payload->data)) {
      array->bytes = *data;
    } else {
      fail("an array without its bytes");
    }
    finish(*array);
  }

  void set_items(const std::vector<ValuePtr>& items) {
    for (const ValuePtr& item : items) item->sealed = true;
    Value& value = target();
    auto* dict = std::get_if<Dict>(&value.data);
    if (dict == nullptr || items.size() % 2 != 0) fail("dict entries for an object that is not a dict");
    for (const ValuePtr& item : items) hold(value, item);
    for (size_t i = 0; i < items.size(); i += 2) dict->items.emplace_back(items[i], items[i + 1]);
  }
  void append(const std::vector<ValuePtr>& items) {
    for (const ValuePtr& item : items) item->sealed = true;
    Value& value = target();
    if (!std::holds_alternative<List>(value.data)) fail("list entries for something that is not a list");
    for (const ValuePtr& item : items) add(value, item);
  }

  /// A run of `K value` opcodes inside a list (a loss mask), read without one object per element.
  bool append_run_of_small() {
    size_t end = at_;
    while (file_.size() - end >= 2 && file_[end] == std::byte{'K'}) end += 2;
    if (end == at_ || end >= file_.size() || file_[end] != std::byte{'e'} || stack_.size() < 1) return false;
    auto* list = std::get_if<List>(&stack_.back()->data);
    if (list == nullptr || list->form != List::Form::kSmall || stack_.back()->sealed) return false;
    for (; at_ < end; at_ += 2) list->small.push_back(std::to_integer<uint8_t>(file_[at_ + 1]));
    ++at_;  // APPENDS
    return true;
  }

  void execute(uint8_t opcode) {
    switch (opcode) {
      case 0x80: {  // PROTO
        const auto protocol = take<uint8_t>();
        if (protocol < 2 || protocol > 5) fail(fmt::format("pickle protocol {}", protocol));
        return;
      }
      case 0x95: take_frame(); return;
      case 'c': {  // GLOBAL
        const auto module = take_line();
        global(module, take_line());
        return;
      }
      case 0x93: {  // STACK_GLOBAL
        const ValuePtr name = pop(), module = pop();
        const auto* name_text = std::get_if<Text>(&name->data);
        const auto* module_text = std::get_if<Text>(&module->data);
        if (name_text == nullptr || module_text == nullptr) fail("a global without a name");
        global(module_text->text, name_text->text);
        return;
      }
      case 'q': remember(take<uint8_t>()); return;
      case 'r': remember(take<uint32_t>()); return;
      case 0x94: remember(memo_.size()); return;  // MEMOIZE
      case 'h': recall(take<uint8_t>()); return;
      case 'j': recall(take<uint32_t>()); return;
      case '(':
        if (!append_run_of_small()) push(Mark{});
        return;
      case 't': push_tuple(pop_to_mark()); return;
      case ')': push(Tuple{}); return;
      case 0x85: tuple(1); return;
      case 0x86: tuple(2); return;
      case 0x87: tuple(3); return;
      case ']': push(List{}); return;
      case '}':
        ++dicts_;
        push(Dict{});
        return;
      case 'a': {
        const ValuePtr item = pop();
        append({item});
        return;
      }
      case 'e': append(pop_to_mark()); return;
      case 's': {
        const ValuePtr value = pop(), key = pop();
        set_items({key, value});
        return;
      }
      case 'u': set_items(pop_to_mark()); return;
      case 'K': push_small(take<uint8_t>()); return;
      case 'M': push(int64_t{take<uint16_t>()}); return;
      case 'J': push(int64_t{take<int32_t>()}); return;
      case 0x8a: {  // LONG1
        const auto bytes = take_bytes(take<uint8_t>());
        if (bytes.size() > 8) fail("an integer of more than 64 bits");
        int64_t value = 0;
        for (size_t i = 0; i < bytes.size(); ++i) value |= std::to_integer<int64_t>(bytes[i]) << (8 * i);
        if (!bytes.empty() && bytes.size() < 8) {
          const int shift = static_cast<int>(64 - 8 * bytes.size());
          value = static_cast<int64_t>(static_cast<uint64_t>(value) << shift) >> shift;
        }
        push(value);
        return;
      }
      case 'X': push(Text{take_text(take<uint32_t>())}); return;
      case 0x8c: push(Text{take_text(take<uint8_t>())}); return;
      case 0x8d: push(Text{take_text(take<uint64_t>())}); return;
      case 'C': push(Bytes{take_bytes(take<uint8_t>()), nullptr}); return;
      case 'B': push(Bytes{take_bytes(take<uint32_t>()), nullptr}); return;
      case 0x8e:
      case 0x96: push(Bytes{take_bytes(take<uint64_t>()), nullptr}); return;  // BINBYTES8, BYTEARRAY8
      case 'N': push_shared(none_); return;
      case 0x88: push_shared(true_); return;
      case 0x89: push_shared(false_); return;
      case '0': pop(); return;
      case 'R': reduce(); return;
      case 'b': build(); return;
      default:
        fail(fmt::format("pickle operation 0x{:02x}, which token records do not need; nothing was executed", opcode));
    }
  }

  void take_frame() {
    const auto size = take<uint64_t>();
    if (size > file_.size() - at_) fail(fmt::format("a frame of {} bytes where {} are left", size, file_.size() - at_));
  }

  const ValuePtr none_ = constant(None{}), true_ = constant(true), false_ = constant(false);
  size_t decoded_ = 0;  // bytes of decoded text
};

}  // namespace

ValuePtr read(std::span<const std::byte> file, size_t begin, const std::filesystem::path& path) {
  return Reader(file, begin, path).run();
}

}  // namespace trireme::pickle
