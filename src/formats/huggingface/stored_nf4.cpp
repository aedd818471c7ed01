#include "trireme/formats/huggingface/stored_nf4.h"

#include "trireme/base/bytes.h"
#include "trireme/base/error.h"
#include "trireme/base/rounding.h"
#include "trireme/formats/json.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <cmath>

namespace trireme {

namespace {

constexpr const char *kNf4State = ".quant_state.bitsandbytes__nf4", *kFp4State = ".quant_state.bitsandbytes__fp4";
constexpr int64_t kValuesPerScale = 64, kScalesPerNested = 256;

}  // namespace

bool has_stored_nf4(const WeightSource& source, const std::string& name) {
  return source.find(name + kNf4State) || source.find(name + kFp4State) || source.find(name + ".absmax");
}

std::optional<StoredNf4> find_stored_nf4(const WeightSource& source, const std::string& name) {
  if (!has_stored_nf4(source, name)) return std::nullopt;
  const auto refuse = [&](const std::string& why) { throw ModelError(tensor_text(source, name) + " " + why); };
  if (source.find(name + kFp4State)) refuse("is stored in FP4: of bitsandbytes' four-bit types NF4 is supported");
  const auto bytes = [&](const std::string& suffix, DType dtype, int64_t count) -> std::span<const std::byte> {
    const auto info = source.find(name + suffix);
    if (!info) refuse(fmt::format("is stored in four bits without {}{}", name, suffix));
    const int64_t elements = element_count(info->shape);
    if (info->dtype != dtype || (count >= 0 && elements != count))
      refuse(fmt::format("is stored in four bits, and {}{} has {} elements of {}, not {} of {}", name, suffix, elements,
                         dtype_name(info->dtype), count, dtype_name(dtype)));
    const std::vector<ElementSpan> spans = source.read(name + suffix, 0, elements);
    TRIREME_CHECK(spans.size() == 1, name, suffix, " is in ", spans.size(), " pieces");
    return {spans[0].data, static_cast<size_t>(elements) * dtype_size(dtype)};
  };
  const auto json = parse_json(as_text(bytes(kNf4State, DType::kU8, -1)),
                               "the quant_state of " + tensor_text(source, name), ExitCode::kModel);
  const auto number = [&](const char* key) {
    const nlohmann::json value = member(json, key);
    return value.is_number() ? value.get<double>() : std::nan("");
  };
  if (member(json, "quant_type") != "nf4" || number("blocksize") != kValuesPerScale)
    refuse(fmt::format("has quant_type {} and blocksize {}: nf4 and {} are supported",
                       member(json, "quant_type").dump(), member(json, "blocksize").dump(), kValuesPerScale));
  if (number("nested_blocksize") != kScalesPerNested || !std::isfinite(number("nested_offset")))
    refuse(
        "has scales that are not quantised in blocks of 256: NF4 is supported with double quantisation "
        "(bnb_4bit_use_double_quant)");
  StoredNf4 stored;
  stored.offset = static_cast<float>(number("nested_offset"));
  int64_t count = 1;
  const nlohmann::json shape = member(json, "shape");
  for (const auto& extent : shape.is_array() ? shape : nlohmann::json::array()) {
    constexpr int64_t kMost = int64_t{1} << 40;
    if (!extent.is_number_integer() || extent.get<double>() < 1 || extent.get<double>() > kMost ||
        count > kMost / extent.get<int64_t>())
      refuse("has a quant_state without a shape");
    stored.shape.push_back(extent.get<int64_t>());
    count *= stored.shape.back();
  }
  if (stored.shape.empty()) refuse("has a quant_state without a shape");
  const int64_t blocks = ceil_div(count, kValuesPerScale);
  stored.codes = bytes("", DType::kU8, ceil_div(count, 2));
  stored.absmax = bytes(".absmax", DType::kU8, blocks);
  stored.nested = bytes(".nested_absmax", DType::kF32, ceil_div(blocks, kScalesPerNested));
  stored.book = bytes(".quant_map", DType::kF32, 16);
  stored.map = bytes(".nested_quant_map", DType::kF32, 256);
  return stored;
}

}  // namespace trireme
