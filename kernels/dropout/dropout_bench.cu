#include "kernels/bench/bench.h"
#include "kernels/dropout/dropout.h"

namespace trireme::kernels {

TRIREME_BENCH(dropout) {
  if (!recorder.wants("dropout")) return;
  constexpr int kSets = 3;
  const int64_t rows = 8, row_size = int64_t{4096} * 4096;
  const Element element = Element::kBF16;
  const double tensor = static_cast<double>(rows * row_size * 2);
  bench::Memory memory;
  DropoutArguments a[kSets];
  int64_t* ids = memory.integers(rows, 1000000);
  for (DropoutArguments& set : a)
    set = {memory.normal(rows * row_size, element),
           nullptr,
           memory.normal(rows * row_size, element),
           ids,
           rows,
           row_size,
           1,
           2,
           6554,
           1.1111f,
           element};
  recorder.time("dropout", "8 x 4096 x 4096", element, 2 * tensor, kSets,
                [&](int i) { return dropout(a[i], nullptr); });
  for (DropoutArguments& set : a) set.addend = set.out;
  recorder.time("dropout, accumulated", "8 x 4096 x 4096", element, 3 * tensor, kSets,
                [&](int i) { return dropout(a[i], nullptr); });
}

}  // namespace trireme::kernels
