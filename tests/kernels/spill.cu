// Indexes an array at run time, which puts the array into local memory. It must not compile with the kernels' options.
__global__ void spill(const int* index, float* out) {
  float values[64];
  for (int i = 0; i < 64; ++i) values[i] = out[i] * static_cast<float>(i);
  for (int i = 0; i < 64; ++i) values[index[i] & 63] += 1.0f;
  for (int i = 0; i < 64; ++i) out[i] = values[index[64 + i] & 63];
}
