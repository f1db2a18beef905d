// libcuda.so.1: versions, devices, contexts, errors.
#include <cstdio>
#include <cstring>

#include "driver.h"

using namespace stand_in;

namespace {

// A context's handle: each device has one place here.
char contexts[16];

// What an H200 says, as far as hosts ask; memory is what the settings say.
int attribute(int number) {
    const auto& settings = driver().settings;
    switch (number) {
        case 1: return THREADS_MAX;                    // threads of a block
        case 2: case 3: return 1024;                   // block's x, y
        case 4: return 64;                             // block's z
        case 5: return 2147483647;                     // grid's x
        case 6: case 7: return 65535;                  // grid's y, z
        case 8: return DYNAMIC_SHARED_DEFAULT;         // shared memory of a block
        case 9: return 65536;                          // constant memory
        case 10: return 32;                            // warp
        case 12: return 65536;                         // registers of a block
        case 13: return 1980000;                       // kHz
        case 16: return 132;                           // multiprocessors
        case 19: return 1;                             // can map host memory
        case 31: return 1;                             // concurrent kernels
        case 36: return 3201000;                       // memory's kHz
        case 37: return 6144;                          // memory bus, bits
        case 38: return 60 << 20;                      // L2, bytes
        case 39: return 2048;                          // threads of a multiprocessor
        case 40: return 3;                             // copy engines
        case 41: return 1;                             // unified addressing
        case 75: return settings.capability_major;
        case 76: return settings.capability_minor;
        case 78: return 1;                             // stream priorities
        case 81: return 228 * 1024;                    // shared memory of a multiprocessor
        case 82: return 65536;                         // registers of a multiprocessor
        case 95: return 1;                             // cooperative launch
        case 97: return DYNAMIC_SHARED_MAX;            // shared memory of a block, opted in
        case 106: return 32;                           // blocks of a multiprocessor
        case 111: return 1024;                         // reserved shared memory of a block
        case 115: return 1;                            // memory pools
        default: return 0;
    }
}

int device_error(int device) { return device >= 0 && device < driver().settings.devices ? SUCCESS : INVALID_DEVICE; }

struct Name {
    int code;
    const char *name, *text;
};
constexpr Name NAMES[] = {
    {SUCCESS, "CUDA_SUCCESS", "no error"},
    {INVALID_VALUE, "CUDA_ERROR_INVALID_VALUE", "invalid argument"},
    {OUT_OF_MEMORY, "CUDA_ERROR_OUT_OF_MEMORY", "out of memory"},
    {NOT_INITIALIZED, "CUDA_ERROR_NOT_INITIALIZED", "initialization error"},
    {NO_DEVICE, "CUDA_ERROR_NO_DEVICE", "no CUDA-capable device is detected"},
    {INVALID_DEVICE, "CUDA_ERROR_INVALID_DEVICE", "invalid device ordinal"},
    {INVALID_IMAGE, "CUDA_ERROR_INVALID_IMAGE", "device kernel image is invalid"},
    {INVALID_CONTEXT, "CUDA_ERROR_INVALID_CONTEXT", "invalid device context"},
    {FILE_NOT_FOUND, "CUDA_ERROR_FILE_NOT_FOUND", "file not found"},
    {INVALID_HANDLE, "CUDA_ERROR_INVALID_HANDLE", "invalid resource handle"},
    {NOT_FOUND, "CUDA_ERROR_NOT_FOUND", "named symbol not found"},
    {NOT_READY, "CUDA_ERROR_NOT_READY", "device not ready"},
    {ILLEGAL_ADDRESS, "CUDA_ERROR_ILLEGAL_ADDRESS", "an illegal memory access was encountered"},
    {LAUNCH_OUT_OF_RESOURCES, "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES", "too many resources requested for launch"},
    {LAUNCH_FAILED, "CUDA_ERROR_LAUNCH_FAILED", "unspecified launch failure"},
    {NOT_SUPPORTED, "CUDA_ERROR_NOT_SUPPORTED", "operation not supported"},
    {STREAM_CAPTURE_UNSUPPORTED, "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED", "operation not permitted when stream is capturing"},
    {STREAM_CAPTURE_INVALIDATED, "CUDA_ERROR_STREAM_CAPTURE_INVALIDATED", "operation failed due to a previous error during capture"},
    {STREAM_CAPTURE_UNMATCHED, "CUDA_ERROR_STREAM_CAPTURE_UNMATCHED", "capture was not initiated in this stream"},
};

const Name* name_of(int code) {
    for (const auto& name : NAMES)
        if (name.code == code) return &name;
    return nullptr;
}

}  // namespace

WEIR_API cuInit(unsigned) {
    Call call("cuInit");
    if (driver().settings.devices == 0) return NO_DEVICE;
    driver().initialized = true;
    return SUCCESS;
}

WEIR_API cuDriverGetVersion(int* version) {
    Call call("cuDriverGetVersion");
    *version = driver().settings.driver_version;
    return SUCCESS;
}

WEIR_API cuDeviceGetCount(int* count) {
    Call call("cuDeviceGetCount");
    if (!driver().initialized) return NOT_INITIALIZED;
    *count = driver().settings.devices;
    return SUCCESS;
}

WEIR_API cuDeviceGet(int* device, int ordinal) {
    Call call("cuDeviceGet");
    if (!driver().initialized) return NOT_INITIALIZED;
    *device = ordinal;
    return device_error(ordinal);
}

WEIR_API cuDeviceGetName(char* name, int bytes, int device) {
    Call call("cuDeviceGetName");
    std::snprintf(name, size_t(bytes), "Stand-in for H200 number %d", device);
    return device_error(device);
}

WEIR_API cuDeviceGetUuid_v2(char* uuid, int device) {
    Call call("cuDeviceGetUuid_v2");
    std::memset(uuid, 0, 16);
    uuid[15] = char(device);
    return device_error(device);
}
WEIR_API cuDeviceGetUuid(char* uuid, int device) { return cuDeviceGetUuid_v2(uuid, device); }

WEIR_API cuDeviceTotalMem_v2(size_t* bytes, int device) {
    Call call("cuDeviceTotalMem_v2");
    *bytes = driver().memory.total;
    return device_error(device);
}

WEIR_API cuDeviceGetAttribute(int* value, int number, int device) {
    Call call("cuDeviceGetAttribute");
    *value = attribute(number);
    return device_error(device);
}

WEIR_API cuDevicePrimaryCtxRetain(void** context, int device) {
    Call call("cuDevicePrimaryCtxRetain");
    if (!driver().initialized) return NOT_INITIALIZED;
    if (device < 0 || device >= int(sizeof contexts)) return INVALID_DEVICE;
    if (const int error = driver().settings.context_error) return error;
    *context = &contexts[device];
    return device_error(device);
}

WEIR_API cuDevicePrimaryCtxRelease_v2(int device) {
    Call call("cuDevicePrimaryCtxRelease_v2");
    return device_error(device);
}

WEIR_API cuCtxSetCurrent(void* context) {
    Call call("cuCtxSetCurrent");
    current_context = context;
    return SUCCESS;
}

WEIR_API cuCtxGetCurrent(void** context) {
    Call call("cuCtxGetCurrent");
    *context = current_context;
    return SUCCESS;
}

WEIR_API cuCtxGetDevice(int* device) {
    Call call("cuCtxGetDevice");
    if (!current_context) return INVALID_CONTEXT;
    *device = int(static_cast<char*>(current_context) - contexts);
    return SUCCESS;
}

WEIR_API cuCtxSynchronize() {
    Call call("cuCtxSynchronize");
    if (const int error = call.ready()) return error;
    for (const auto& [handle, stream] : driver().streams)
        if (stream->capture) return stream->capture_failed = true, STREAM_CAPTURE_UNSUPPORTED;
    if (call.wait()) driver().run_all();
    return driver().error;
}

WEIR_API cuCtxGetStreamPriorityRange(int* least, int* greatest) {
    Call call("cuCtxGetStreamPriorityRange");
    *least = 0, *greatest = -5;
    return SUCCESS;
}

WEIR_API cuGetErrorName(int code, const char** text) {
    const auto* name = name_of(code);
    *text = name ? name->name : nullptr;
    return name ? SUCCESS : INVALID_VALUE;
}

WEIR_API cuGetErrorString(int code, const char** text) {
    const auto* name = name_of(code);
    *text = name ? name->text : nullptr;
    return name ? SUCCESS : INVALID_VALUE;
}
