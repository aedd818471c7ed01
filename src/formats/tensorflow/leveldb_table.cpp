#include "leveldb_table.h"

#include "trireme/base/error.h"
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
  const DamagedAt damaged = damaged_model(what);
  if (handle.offset > table.size() || handle.size > table.size() - handle.offset ||
      table.size() - handle.offset - handle.size < kTrailer)
    throw ModelError(fmt::format("{}: a block of {} bytes at {} lies outside the file of {}; the file is damaged", what,
                                 handle.size, handle.offset, table.size()));
  const auto block = table.subspan(static_cast<size_t>(handle.offset), static_cast<size_t>(handle.size) + 1);
  ByteCursor trailer(table.subspan(static_cast<size_t>(handle.offset + handle.size), kTrailer), damaged);
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
  ByteCursor tail(content.last(4), damaged);
  const uint64_t restarts = tail.fixed(4);
  if (restarts > content.size() / 4 - 1)
    tail.fail(fmt::format("a block of {} bytes claims {} restarts", content.size(), restarts));
  return content.first(content.size() - 4 - 4 * static_cast<size_t>(restarts));
}

/// Keys ascend through the whole table: `last` is passed from block to block.
template <class F>
void walk_block(std::span<const std::byte> entries, const DamagedAt& damaged, std::optional<std::string>& last,
                const F& visit) {
  ByteCursor cursor(entries, damaged);
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

DamagedAt damaged_model(const std::string& what) {
  return [what](size_t, const std::string& why) {
    throw ModelError(fmt::format("{}: {}; the file is damaged", what, why));
  };
}

void for_each_entry(std::span<const std::byte> table, const std::string& what,
                    const std::function<void(const std::string&, std::span<const std::byte>)>& visit) {
  if (table.size() < kFooter)
    throw ModelError(fmt::format("{} has {} bytes, too few for a checkpoint's index", what, table.size()));
  const DamagedAt damaged = damaged_model(what);
  ByteCursor footer(table.last(kFooter), damaged);
  read_handle(footer);  // of the metaindex block, which is not needed
  const Handle index = read_handle(footer);
  ByteCursor magic(table.last(8), damaged);
  if (magic.fixed(8) != kMagic)
    throw ModelError(fmt::format("{} is not an index of a TensorFlow checkpoint (V2): its last bytes differ", what));
  const auto blocks = table.first(table.size() - kFooter);
  std::optional<std::string> last_separator, last_key;
  walk_block(read_block(blocks, index, what), damaged, last_separator,
             [&](const std::string&, std::span<const std::byte> value) {
               ByteCursor cursor(value, damaged);
               walk_block(read_block(blocks, read_handle(cursor), what), damaged, last_key, visit);
             });
}

}  // namespace trireme
