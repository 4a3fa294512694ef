#include "metal/shader_source.h"

#include <fstream>
#include <functional>
#include <map>
#include <mutex>
#include <set>
#include <sstream>
#include <stdexcept>

namespace pomona::metal {

namespace {

struct Shaders {
  std::mutex mutex;
  std::string folder;
  std::map<std::string, std::shared_ptr<const ShaderSource>> sources; // by file
};

Shaders& shaders() {
  static Shaders shared;
  return shared;
}

std::ifstream open(const std::string& folder, const std::string& file) {
  std::ifstream stream(folder + "/" + file);
  if (!stream) {
    throw std::runtime_error("cannot read the shader " + folder + "/" + file);
  }
  return stream;
}

// Metal compiles a text that has no folder, so headers in quotes are put in their place.
void append(
    const std::string& folder,
    const std::string& file,
    std::set<std::string>& included,
    std::ostringstream& text) {
  if (!included.insert(file).second) {
    return;
  }
  const std::string include = "#include \"";
  auto stream = open(folder, file);
  text << "#line 1 \"" << file << "\"\n";
  int number = 0;
  for (std::string line; std::getline(stream, line);) {
    number++;
    if (line.compare(0, include.size(), include) == 0) {
      append(folder, line.substr(include.size(), line.rfind('"') - include.size()), included, text);
      text << "#line " << number + 1 << " \"" << file << "\"\n";
    } else if (line != "#pragma once") {
      text << line << "\n";
    } else {
      text << "\n";
    }
  }
}

} // namespace

void set_shader_folder(const std::string& folder) {
  std::lock_guard lock(shaders().mutex);
  shaders().folder = folder;
  shaders().sources.clear();
}

std::shared_ptr<const ShaderSource> shader_source(const std::string& file) {
  std::lock_guard lock(shaders().mutex);
  if (shaders().folder.empty()) {
    throw std::runtime_error("set_shader_folder has not been called");
  }
  auto& source = shaders().sources[file];
  if (!source) {
    std::set<std::string> included;
    std::ostringstream stream;
    append(shaders().folder, file, included, stream);
    auto text = stream.str();
    auto hash = std::to_string(std::hash<std::string>{}(text));
    source = std::make_shared<ShaderSource>(ShaderSource{std::move(text), std::move(hash)});
  }
  return source;
}

} // namespace pomona::metal
