#include "formats/tensorflow/leveldb_table.h"

#include "trireme/formats/tensorflow/tf_checkpoint.h"

#include <optional>

namespace trireme {

namespace {

constexpr uint64_t kMagic = 0xdb4775248b80fb57;
constexpr size_t kFooter = 48, kTrailer = 5;
constexpr uint64_t kMaxKey = 4096;

struct Handle {
  uint64_t offset, size;
};
Handle read_handle(ByteCursor& cursor) {
  const uint64_t offset = cursor.varint();
  return {offset, cursor.varint()};
}

/// The block's entries. Checks its trailer (compression type, masked checksum).
std::span<const std::byte> read_block(std::span<const std::byte> table, Handle handle, const std::string& what) {
  if (handle.offset > table.size() || handle.size > table.size() - handle.offset ||
      table.size() - handle.offset - handle.size < kTrailer)
    throw ModelError(fmt::format("{}: a block of {} bytes at {} lies outside the file of {}; the file is damaged", what,
                                 handle.size, handle.offset, table.size()));
  const auto block = table.subspan(static_cast<size_t>(handle.offset), static_cast<size_t>(handle.size) + 1);
  ByteCursor trailer(table.subspan(static_cast<size_t>(handle.offset + handle.size), kTrailer), what);
  const uint64_t type = trailer.fixed(1);
  if (type == 1)
    throw ModelError(fmt::format(
        "{}: the block at {} is compressed with snappy, which is not supported: write the checkpoint again with "
        "tf.train.Saver or tf.train.Checkpoint, which do not compress",
        what, handle.offset));
  if (type != 0) trailer.fail(fmt::format("the block at {} has the unknown type {}", handle.offset, type));
  if (trailer.fixed(4) != masked_crc32c(block))
    trailer.fail(fmt::format("the checksum of the block at {} does not match", handle.offset));
  const auto content = block.first(block.size() - 1);
  if (content.size() < 4) trailer.fail("a block is too short for its count of restarts");
  ByteCursor tail(content.last(4), what);
  const uint64_t restarts = tail.fixed(4);
  if (restarts > content.size() / 4 - 1)
    tail.fail(fmt::format("a block of {} bytes claims {} restarts", content.size(), restarts));
  return content.first(content.size() - 4 - 4 * static_cast<size_t>(restarts));
}

/// Keys ascend through the whole table: `last` is passed from block to block.
template <class F>
void walk_block(std::span<const std::byte> entries, const std::string& what, std::optional<std::string>& last,
                const F& visit) {
  ByteCursor cursor(entries, what);
  std::string key;
  while (!cursor.empty()) {
    const uint64_t shared = cursor.varint(), own = cursor.varint(), length = cursor.varint();
    if (shared > key.size()) cursor.fail(fmt::format("a key shares {} bytes with one of {}", shared, key.size()));
    if (own > kMaxKey || shared + own > kMaxKey) cursor.fail(fmt::format("a key of {} bytes", shared + own));
    const auto rest = cursor.take(own);
    key.resize(static_cast<size_t>(shared));
    key.append(reinterpret_cast<const char*>(rest.data()), rest.size());
    const auto value = cursor.take(length);
    if (last && key <= *last) cursor.fail("keys do not ascend");
    last = key;
    visit(key, value);
  }
}

}  // namespace

void for_each_field(std::span<const std::byte> message, const std::string& what,
                    const std::function<void(const ProtoField&)>& visit) {
  ByteCursor cursor(message, what);
  while (!cursor.empty()) {
    const uint64_t tag = cursor.varint();
    if (tag >> 3 == 0 || tag >> 3 > 0x1fffffff) cursor.fail(fmt::format("a field has the number {}", tag >> 3));
    ProtoField field;
    field.number = static_cast<uint32_t>(tag >> 3);
    switch (tag & 7) {
      case 0: field.value = cursor.varint(); break;
      case 1: field.value = cursor.fixed(8); break;
      case 2: field.bytes = cursor.take(cursor.varint()); break;
      case 5: field.value = cursor.fixed(4); break;
      default: cursor.fail(fmt::format("field {} has the wire type {}", field.number, tag & 7));
    }
    visit(field);
  }
}

void for_each_entry(std::span<const std::byte> table, const std::string& what,
                    const std::function<void(const std::string&, std::span<const std::byte>)>& visit) {
  if (table.size() < kFooter)
    throw ModelError(fmt::format("{} has {} bytes, too few for a checkpoint's index", what, table.size()));
  ByteCursor footer(table.last(kFooter), what);
  read_handle(footer);  // of the metaindex block, which is not needed
  const Handle index = read_handle(footer);
  ByteCursor magic(table.last(8), what);
  if (magic.fixed(8) != kMagic)
    throw ModelError(fmt::format("{} is not an index of a TensorFlow checkpoint (V2): its last bytes differ", what));
  const auto blocks = table.first(table.size() - kFooter);
  std::optional<std::string> last_separator, last_key;
  walk_block(read_block(blocks, index, what), what, last_separator,
             [&](const std::string&, std::span<const std::byte> value) {
               ByteCursor cursor(value, what);
               walk_block(read_block(blocks, read_handle(cursor), what), what, last_key, visit);
             });
}

}  // namespace trireme
