// How an aclnn function of CANN is defined: a C signature, and a kernel on host tensors.
//
// An aclnn function comes in two halves. `aclnnXGetWorkspaceSize` takes the arguments, checks them and returns an
// executor; `aclnnX` launches the executor on a stream. Here the first half copies the arguments into a closure, the
// second appends the closure to the stream, so the work is asynchronous and in stream order as on a card.
#pragma once

#include <functional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "compute/opapi/handles.h"
#include "runtime/export.h"

struct aclOpExecutor {
    const char* name;
    std::function<void()> work;
};

namespace npu_sim {

using Tensors = std::vector<at::Tensor>;
using Ints = std::vector<int64_t>;

// Runs `work` as the next task of the stream; an exception becomes the stream's error, named after the operator.
aclError launch(const char* name, std::function<void()> work, aclrtStream stream);

// Runs `make` and hands its closure over, or turns its exception into CANN's code for bad arguments.
aclError prepare_executor(const char* name, const std::function<std::function<void()>()>& make, uint64_t* workspace,
                          aclOpExecutor** executor);

aclError launch_executor(aclOpExecutor* executor, aclrtStream stream);

// What of an argument outlives its handle. An absent tensor is an undefined one, an absent array an empty one.
at::Tensor take(const aclTensor* tensor);
Tensors take(const aclTensorList* list);
inline c10::Scalar take(const aclScalar* scalar) { return scalar->value; }
inline Ints take(const aclIntArray* array) { return array ? array->values : Ints(); }
inline std::vector<bool> take(const aclBoolArray* array) { return array ? array->values : std::vector<bool>(); }
inline std::string take(const char* text) { return text ? text : ""; }
inline std::string take(char* text) { return text ? text : ""; }
template <class T>
T take(T value) requires std::is_arithmetic_v<T> || std::is_enum_v<T> {
    return value;
}

template <class Kernel, class... Arguments>
aclError prepare(const char* name, uint64_t* workspace, aclOpExecutor** executor, Kernel kernel,
                 Arguments... arguments) {
    const auto make = [&]() -> std::function<void()> {
        return [kernel, kept = std::make_tuple(take(arguments)...)] { std::apply(kernel, kept); };
    };
    return prepare_executor(name, make, workspace, executor);
}

}  // namespace npu_sim

// NPU_SIM_ACLNN(aclnnX, (C parameters without workspace and executor), kernel, the parameters' names)
#define NPU_SIM_UNPACK(...) __VA_ARGS__
#define NPU_SIM_ACLNN(name, parameters, kernel, ...)                                                     \
    NPU_SIM_API int name##GetWorkspaceSize(NPU_SIM_UNPACK parameters, uint64_t* workspace,               \
                                           aclOpExecutor** executor) {                                   \
        return npu_sim::prepare(#name, workspace, executor, kernel, __VA_ARGS__);                        \
    }                                                                                                    \
    NPU_SIM_LAUNCH(name)

// The second half alone, for a function whose first half is written out.
#define NPU_SIM_LAUNCH(name)                                                             \
    NPU_SIM_API int name(void*, uint64_t, aclOpExecutor* executor, aclrtStream stream) { \
        return npu_sim::launch_executor(executor, stream);                               \
    }
