#include "kernels/launch.h"
#include "kernels/quantize/quantize.h"
#include "kernels/quantize/tile.cuh"

namespace trireme::kernels {

namespace {

constexpr int kEdge = 32, kEdgeRows = 8;

/// Any size and alignment.
__global__ void edge_kernel(const uint8_t* in, uint8_t* out, int64_t rows, int64_t columns, int64_t first_tile) {
  __shared__ uint8_t tile[kEdge][kEdge + 1];
  const int64_t row0 = static_cast<int64_t>(blockIdx.x) * kEdge, column0 = (first_tile + blockIdx.y) * kEdge;
  for (int j = threadIdx.y; j < kEdge; j += kEdgeRows) {
    const int64_t row = row0 + j, column = column0 + threadIdx.x;
    if (row < rows && column < columns) tile[j][threadIdx.x] = in[row * columns + column];
  }
  __syncthreads();
  for (int j = threadIdx.y; j < kEdge; j += kEdgeRows) {
    const int64_t row = row0 + threadIdx.x, column = column0 + j;
    if (row < rows && column < columns) out[column * rows + row] = tile[threadIdx.x][j];
  }
}

}  // namespace

cudaError_t transpose_bytes(const uint8_t* in, uint8_t* out, int64_t rows, int64_t columns, cudaStream_t stream) {
  if (rows == 0 || columns == 0) return cudaSuccess;
  if (rows % 16 == 0 && columns % 16 == 0 && aligned16(in, out)) {
    tile::Output to;
    to.transposed = out, to.rows = rows, to.columns = columns;
    return tile::launch</*kSums=*/false>(tile::Plain<uint8_t>{in}, to, stream);
  }
  return launch_pieces(ceil_div(columns, kEdge), [&](int64_t first, unsigned tiles) {
    edge_kernel<<<dim3(static_cast<unsigned>(ceil_div(rows, kEdge)), tiles), dim3(kEdge, kEdgeRows), 0, stream>>>(
        in, out, rows, columns, first);
    return cudaGetLastError();
  });
}

}  // namespace trireme::kernels
