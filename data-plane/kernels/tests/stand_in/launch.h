// How kernels become known to the driver: WEIR_EXPORT registers one by name with the sizes of its arguments.
#pragma once
#include <cstddef>
#include <utility>

#include "thread.h"

namespace stand_in {

struct Kernel {
    const char* name;
    // Runs the current thread's share, with one pointer for each argument, as cuLaunchKernel takes them.
    void (*body)(void* const* arguments);
    const size_t* argument_sizes;
    size_t arguments;
    // An address among the static __shared__ variables of the module, those of this thread of the operating system.
    void* (*static_shared)();
};

// Makes a kernel known until the module is unloaded. A second one of the same name replaces the first.
WEIR_STAND_IN_API void register_kernel(const Kernel& kernel);

[[maybe_unused]] static void* static_shared_anchor() {
    static thread_local unsigned char anchor;
    return &anchor;
}

template <auto function> struct Export;

template <class... Arguments, void (*function)(Arguments...)> struct Export<function> {
    static constexpr size_t sizes[sizeof...(Arguments) + 1] = {sizeof(Arguments)..., 0};

    static void body(void* const* arguments) { call(arguments, std::index_sequence_for<Arguments...>{}); }

    template <size_t... i> static void call([[maybe_unused]] void* const* arguments, std::index_sequence<i...>) {
        function(*static_cast<const std::remove_cvref_t<Arguments>*>(arguments[i])...);
    }

    explicit Export(const char* name) {
        register_kernel({name, body, sizes, sizeof...(Arguments), static_shared_anchor});
    }
};

}  // namespace stand_in

#define WEIR_EXPORT(name) static const stand_in::Export<&name> weir_export_##name(#name);
