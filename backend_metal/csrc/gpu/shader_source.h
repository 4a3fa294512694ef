// The text of the shaders, which ship beside the Python package.
#pragma once

#include <memory>
#include <string>

namespace pomona {

// Where the kernels of a GPU and their headers lie. Kernels that are compiled already stay in use
// for the same text, and are compiled again for another.
void set_shader_folder(const std::string& folder);

// Another one after each call of set_shader_folder: whoever keeps what was compiled asks for it.
int shader_generation();

struct ShaderSource {
  std::string text; // of the file and the project's headers that it includes, once each
  std::string hash;
};

// Raises std::runtime_error when no folder has been set, or a file cannot be read.
std::shared_ptr<const ShaderSource> shader_source(const std::string& file);

} // namespace pomona
