// libnvrtc.so.13: takes a source and the options as the compiler would, and gives an image that the stand-in's driver
// takes. What the kernels do is in the object that g++ has made of the same source.
#include <cstddef>
#include <cstring>
#include <utility>
#include <string>

#define API extern "C" __attribute__((visibility("default"))) int

namespace {

enum Result { SUCCESS = 0, INVALID_INPUT = 3, INVALID_PROGRAM = 4, INVALID_OPTION = 5, COMPILATION = 6 };

// PTX begins with a directive; nothing else in it is looked at.
constexpr char PTX[] = ".version 9.0\n";

struct Program {
    std::string source, log;
    bool is_compiled = false;
};

int copy(const void* program, const std::string& text, char* to) {
    if (!program || !to) return INVALID_PROGRAM;
    std::memcpy(to, text.c_str(), text.size() + 1);
    return SUCCESS;
}

}  // namespace

API nvrtcCreateProgram(Program** program, const char* source, const char*, int, const char* const*, const char* const*) {
    if (!program || !source) return INVALID_INPUT;
    *program = new Program{source, ""};
    return SUCCESS;
}

API nvrtcDestroyProgram(Program** program) {
    if (!program || !*program) return INVALID_PROGRAM;
    delete std::exchange(*program, nullptr);
    return SUCCESS;
}

API nvrtcCompileProgram(Program* program, int count, const char* const* options) {
    if (!program) return INVALID_PROGRAM;
    bool has_architecture = false;
    for (int i = 0; i < count; i++) {
        if (std::strncmp(options[i], "--", 2) != 0) return INVALID_OPTION;
        has_architecture |= std::strncmp(options[i], "--gpu-architecture=compute_", 27) == 0;
    }
    // The compiler sees one source and has no folders to look for others in; what is for g++ alone it passes over.
    bool is_whole = true;
    for (size_t at = 0; (at = program->source.find("#include \"", at)) != std::string::npos; at++)
        is_whole &= program->source.compare(at, 27, "#include \"stand_in/cuda.h\"\n") == 0;
    const bool has_kernels = program->source.find("__global__") != std::string::npos;
    program->is_compiled = has_architecture && is_whole && has_kernels;
    program->log = program->is_compiled ? "" : "error: no architecture, no kernel, or an include that is not there";
    return program->is_compiled ? SUCCESS : COMPILATION;
}

API nvrtcGetPTXSize(Program* program, size_t* bytes) {
    if (!program || !program->is_compiled || !bytes) return INVALID_PROGRAM;
    *bytes = sizeof PTX;
    return SUCCESS;
}

API nvrtcGetPTX(Program* program, char* ptx) { return copy(program, PTX, ptx); }

API nvrtcGetProgramLogSize(Program* program, size_t* bytes) {
    if (!program || !bytes) return INVALID_PROGRAM;
    *bytes = program->log.size() + 1;
    return SUCCESS;
}

API nvrtcGetProgramLog(Program* program, char* log) {
    return program ? copy(program, program->log, log) : INVALID_PROGRAM;
}
