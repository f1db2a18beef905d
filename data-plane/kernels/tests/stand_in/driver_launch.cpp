// libcuda.so.1: modules, kernels, launches.
//
// A module's image is not read beyond its first bytes: the kernels are those that were registered, by name.
#include <cstring>
#include <fstream>

#include "driver.h"

using namespace stand_in;

namespace {

// What a launch takes with it: the values of the arguments, copied when it is called.
struct Recorded {
    Kernel kernel;
    dim3 grid, threads;
    size_t dynamic_bytes;
    std::vector<std::vector<unsigned char>> values;

    Recorded(const Kernel& kernel, dim3 grid, dim3 threads, size_t dynamic_bytes, void** arguments)
        : kernel(kernel), grid(grid), threads(threads), dynamic_bytes(dynamic_bytes) {
        for (size_t i = 0; i < kernel.arguments; ++i) {
            const auto* value = static_cast<const unsigned char*>(arguments[i]);
            values.emplace_back(value, value + kernel.argument_sizes[i]);
        }
    }

    // A pointer among the arguments to memory that has been given back.
    bool stale() const {
        for (const auto& value : values)
            for (size_t offset = 0; offset + sizeof(void*) <= value.size(); offset += sizeof(void*)) {
                const void* pointer;
                std::memcpy(&pointer, value.data() + offset, sizeof pointer);
                if (driver().memory.stale(pointer)) return true;
            }
        return false;
    }

    std::optional<std::string> run() const {
        std::vector<void*> arguments;
        for (const auto& value : values) arguments.push_back(const_cast<unsigned char*>(value.data()));
        return run_grid({kernel, grid, threads, dynamic_bytes, arguments.data(), driver().settings.schedule});
    }
};

void execute(const Recorded& launch) {
    auto& state = driver();
    const std::string name = std::string("kernel ") + launch.kernel.name;
    if (state.executions++ == state.settings.failing_execution)
        return state.fail(state.settings.failure, name + ": failed as a test asked for");
    if (launch.stale()) return state.fail(ILLEGAL_ADDRESS, name + ": an argument points to memory that was freed");
    if (auto error = launch.run()) return state.fail(LAUNCH_FAILED, *std::move(error));
    if (!state.settings.check_memory) return;
    if (const auto damage = state.memory.damage()) state.fail(ILLEGAL_ADDRESS, name + ": " + *damage);
}

// Work of a library, such as a matrix product.
void execute_library(const char* name, const std::function<void()>& work) {
    auto& state = driver();
    if (state.executions++ == state.settings.failing_execution)
        return state.fail(state.settings.failure, std::string(name) + ": failed as a test asked for");
    work();
    if (!state.settings.check_memory) return;
    if (const auto damage = state.memory.damage()) state.fail(ILLEGAL_ADDRESS, std::string(name) + ": " + *damage);
}

// What the device cannot do.
int check(const Function& function, dim3 grid, dim3 threads, size_t dynamic_bytes) {
    const uint64_t count = uint64_t(threads.x) * threads.y * threads.z;
    if (grid.x == 0 || grid.y == 0 || grid.z == 0 || count == 0) return INVALID_VALUE;
    if (grid.x > 2147483647u || grid.y > 65535 || grid.z > 65535) return INVALID_VALUE;
    if (count > THREADS_MAX || threads.z > 64) return INVALID_VALUE;
    if (dynamic_bytes > function.dynamic_bytes_max) return INVALID_VALUE;
    return SUCCESS;
}

// A fat binary, an ELF file or PTX.
bool is_image(const void* image) {
    const auto* bytes = static_cast<const unsigned char*>(image);
    if (!bytes) return false;
    const unsigned char fat[] = {0x50, 0xed, 0x55, 0xba}, wrapped[] = {0xb1, 0x43, 0x62, 0x46}, elf[] = {0x7f, 'E', 'L', 'F'};
    for (const auto* magic : {fat, wrapped, elf})
        if (std::memcmp(bytes, magic, 4) == 0) return true;
    return bytes[0] == '/' || bytes[0] == '.' || bytes[0] == '\n';
}

int load(void** handle) {
    auto module = std::make_unique<Module>();
    *handle = module.get();
    driver().modules.insert(std::move(module));
    return SUCCESS;
}

Module* find_module(void* handle) {
    for (const auto& module : driver().modules)
        if (module.get() == handle) return module.get();
    return nullptr;
}

}  // namespace

namespace stand_in {

// For libraries: queues work on a stream as a launch is queued. Returns an error of the interface.
WEIR_STAND_IN_API int enqueue(void* stream_handle, const char* name, std::function<void()> work) {
    Call call(name);
    if (const int error = call.ready()) return error;
    const auto stream = driver().stream(stream_handle);
    if (!stream) return INVALID_HANDLE;
    if (driver().launches++ == driver().settings.failing_launch) return driver().settings.failure;
    enqueue(*stream, [name, work = std::move(work)] { execute_library(name, work); });
    return SUCCESS;
}

}  // namespace stand_in

WEIR_API cuModuleLoadData(void** handle, const void* image) {
    Call call("cuModuleLoadData");
    if (const int error = call.ready()) return error;
    return is_image(image) ? load(handle) : INVALID_IMAGE;
}

WEIR_API cuModuleLoad(void** handle, const char* path) {
    Call call("cuModuleLoad");
    if (const int error = call.ready()) return error;
    std::ifstream file(path, std::ios::binary);
    if (!file) return FILE_NOT_FOUND;
    char start[4] = {};
    file.read(start, sizeof start);
    return is_image(start) ? load(handle) : INVALID_IMAGE;
}

WEIR_API cuModuleUnload(void* handle) {
    Call call("cuModuleUnload");
    for (auto entry = driver().modules.begin(); entry != driver().modules.end(); ++entry)
        if (entry->get() == handle) return driver().modules.erase(entry), SUCCESS;
    return INVALID_HANDLE;
}

WEIR_API cuModuleGetFunction(void** handle, void* module_handle, const char* name) {
    Call call("cuModuleGetFunction");
    if (const int error = call.ready()) return error;
    auto* module = find_module(module_handle);
    if (!module) return INVALID_HANDLE;
    const Kernel* kernel = find_kernel(name);
    if (!kernel) return NOT_FOUND;
    auto& function = module->functions[name];
    if (!function) function = std::make_unique<Function>(Function{*kernel});
    *handle = function.get();
    return SUCCESS;
}

WEIR_API cuFuncSetAttribute(void* handle, int attribute, int value) {
    Call call("cuFuncSetAttribute");
    constexpr int MAX_DYNAMIC_SHARED_SIZE_BYTES = 8;
    if (attribute != MAX_DYNAMIC_SHARED_SIZE_BYTES) return SUCCESS;
    if (value < 0 || size_t(value) > DYNAMIC_SHARED_MAX) return INVALID_VALUE;
    static_cast<Function*>(handle)->dynamic_bytes_max = size_t(value);
    return SUCCESS;
}

WEIR_API cuFuncGetAttribute(int* value, int attribute, void* handle) {
    Call call("cuFuncGetAttribute");
    switch (attribute) {
        case 0: *value = int(THREADS_MAX); break;                                             // threads of a block
        case 4: *value = 32; break;                                                           // registers
        case 5: case 6: *value = 90; break;                                                   // PTX and binary version
        case 8: *value = int(static_cast<Function*>(handle)->dynamic_bytes_max); break;
        default: *value = 0;
    }
    return SUCCESS;
}

WEIR_API cuFuncSetCacheConfig(void*, int) { return SUCCESS; }

WEIR_API cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int* blocks, void*, int threads, size_t dynamic_bytes, unsigned) {
    Call call("cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags");
    if (threads <= 0) return INVALID_VALUE;
    const size_t by_shared = dynamic_bytes == 0 ? 32 : 228 * 1024 / (dynamic_bytes + 1024);
    *blocks = int(std::min({size_t(32), size_t(2048) / size_t(threads), by_shared}));
    return SUCCESS;
}

WEIR_API cuLaunchKernel(void* handle, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned threads_x, unsigned threads_y,
                        unsigned threads_z, unsigned dynamic_bytes, void* stream_handle, void** arguments, void** extra) {
    Call call("cuLaunchKernel");
    if (const int error = call.ready()) return error;
    const auto stream = driver().stream(stream_handle);
    const auto& function = *static_cast<Function*>(handle);
    if (!stream) return INVALID_HANDLE;
    if (extra || (!arguments && function.kernel.arguments)) return NOT_SUPPORTED;
    const dim3 grid(grid_x, grid_y, grid_z), threads(threads_x, threads_y, threads_z);
    if (const int error = check(function, grid, threads, dynamic_bytes)) return error;
    if (driver().launches++ == driver().settings.failing_launch) return driver().settings.failure;
    const auto launch = std::make_shared<const Recorded>(function.kernel, grid, threads, dynamic_bytes, arguments);
    enqueue(*stream, [launch] { execute(*launch); });
    return SUCCESS;
}
