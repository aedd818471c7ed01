#include "formats/hdf5/hdf5_handles.h"

namespace trireme {

Hdf5Handle create_hdf5(const std::filesystem::path& path) {
  const Hdf5Handle access(H5Pcreate(H5P_FILE_ACCESS), H5Pclose);
  H5Pset_file_locking(access.get(), /*use_file_locking=*/false, /*ignore_when_disabled=*/true);
  return {H5Fcreate(path.c_str(), H5F_ACC_TRUNC, H5P_DEFAULT, access.get()), H5Fclose};
}

void quiet_hdf5() { H5Eset_auto2(H5E_DEFAULT, nullptr, nullptr); }

std::string hdf5_reason() {
  std::string reason;
  H5Ewalk2(
      H5E_DEFAULT, H5E_WALK_UPWARD,
      [](unsigned, const H5E_error2_t* error, void* data) -> herr_t {
        auto& text = *static_cast<std::string*>(data);
        if (text.empty() && error->desc != nullptr) text = error->desc;
        return 0;
      },
      &reason);
  H5Eclear2(H5E_DEFAULT);
  return reason.empty() ? "no reason given" : reason;
}

}  // namespace trireme
