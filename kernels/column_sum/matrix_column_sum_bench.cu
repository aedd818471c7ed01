#include "kernels/bench/bench.h"
#include "kernels/column_sum/matrix_column_sum.h"

namespace trireme::kernels {

TRIREME_BENCH(matrix_column_sum) {
  if (!recorder.wants("matrix_column_sum")) return;
  constexpr int kSets = 3;
  const Element element = Element::kBF16;
  struct Shape {
    const char* name;
    int64_t rows, columns;
  };
  for (const Shape& s :
       {Shape{"65536 x 768", 65536, 768}, {"65536 x 2304", 65536, 2304}, {"8192 x 4096", 8192, 4096}}) {
    bench::Memory memory;
    MatrixColumnSum a[kSets];
    int64_t* ids = memory.integers(s.rows / 2048, 1000000);
    void* outs[kSets];
    for (int i = 0; i < kSets; ++i) {
      a[i].x = memory.normal(s.rows * s.columns, element);
      outs[i] = memory.normal(s.rows * s.columns, element);
      a[i].sums = memory.normal(s.columns, element);
      a[i].workspace =
          static_cast<float*>(memory.normal(matrix_column_sum_workspace(s.rows, s.columns), Element::kF32));
      a[i].rows = s.rows, a[i].columns = s.columns, a[i].element = element;
    }
    const double tensor = static_cast<double>(s.rows * s.columns * 2);
    recorder.time("matrix_column_sum", s.name, element, tensor, kSets,
                  [&](int i) { return matrix_column_sum(a[i], nullptr); });
    for (int i = 0; i < kSets; ++i) {
      a[i].dropped = outs[i], a[i].ids = ids, a[i].rows_of_sample = 2048;
      a[i].t0 = 1, a[i].t1 = 2, a[i].threshold = 6554, a[i].scale = 1.1111f;
    }
    recorder.time("matrix_column_sum, dropout", s.name, element, 2 * tensor, kSets,
                  [&](int i) { return matrix_column_sum(a[i], nullptr); });
  }
}

}  // namespace trireme::kernels
