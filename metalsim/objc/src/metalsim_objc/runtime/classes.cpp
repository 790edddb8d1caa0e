// Objective-C's run time: classes, categories, constant strings and messages, laid out as clang does for
// -fobjc-runtime=gcc (version 8 of the ABI of GCC's libobjc). The memory of objects is foundation.mm's business.

#include <cstdint>
#include <mutex>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>

#include "refused.h"

namespace {

using Method = void* (*)(); // a function whose arguments its caller knows
using Methods = std::unordered_map<std::string_view, Method>; // by selector

// Selectors are compared by name: two of the same name need not be one.
struct Selector {
  const char* name;
  const char* types;
};

struct MethodList {
  void* next;
  int32_t count;
  struct {
    Selector selector;
    Method method;
  } methods[];
};

struct Class {
  Class* isa; // of a class its metaclass, which has its class methods
  Class* super; // where kReady is not set, the superclass's name
  const char* name;
  long version;
  unsigned long info; // bits, as below
  long instance_size;
  void* ivars;
  MethodList* own;
  Methods* methods; // ours: its own and those of its categories
};

constexpr unsigned long kMeta = 2;
constexpr unsigned long kReady = 1 << 16; // ours: its superclass is known, +initialize was sent

struct Object {
  Class* isa;
};

struct Category {
  const char* name;
  const char* of;
  MethodList* methods[2]; // of objects, of the class
};

struct Constants {
  const char* of;
  Object* objects[]; // up to null
};

struct Module {
  unsigned long version, size;
  const char* name;
  struct {
    unsigned long selector_count;
    Selector* selectors;
    uint16_t class_count, category_count;
    void* definitions[]; // classes, categories, and a null-ended list of Constants or null
  }* symbols;
};

// What is known under the name of a class, which may be loaded after a category of it.
struct Known {
  Class* loaded = nullptr;
  Methods methods[2]; // of objects, of the class
};

// Never destroyed: objects are released at the end of the process, too. A module is loaded while others run.
std::recursive_mutex& mutex() {
  static auto* mutex = new std::recursive_mutex;
  return *mutex;
}

Known& known(const char* name) {
  static auto* all = new std::unordered_map<std::string, Known>;
  return (*all)[name];
}

void add(Methods& to, const MethodList* list) {
  for (int32_t i = 0; list != nullptr && i < list->count; ++i)
    to[list->methods[i].selector.name] = list->methods[i].method;
}

// A method of the class itself, not of a superclass.
Method own(const Class* of, const char* name) {
  const std::lock_guard<std::recursive_mutex> lock(mutex());
  const auto found = of->methods->find(name);
  return found != of->methods->end() ? found->second : nullptr;
}

Method find(const Class* in, const char* name) {
  Method found = nullptr;
  for (; in != nullptr && found == nullptr; in = in->super)
    found = own(in, name);
  return found;
}

// Calls a method without arguments, if there is one.
void send(Method method, void* to, const char* name) {
  const Selector selector{name, nullptr};
  if (method != nullptr)
    reinterpret_cast<void (*)(void*, const Selector*)>(method)(to, &selector);
}

// Before the first message to a class or to an object of it.
void prepare(Class* one) {
  if (one->info & kReady)
    return;
  one->info |= kReady;
  if (one->info & kMeta)
    return prepare(known(one->name).loaded);
  if (one->super != nullptr) {
    const auto* name = reinterpret_cast<const char*>(one->super);
    one->super = known(name).loaded;
    if (one->super == nullptr)
      metalsim::refuse(one->name, std::string("its superclass ") + name + " is not loaded", metalsim::kEndsProcess);
    prepare(one->super);
  }
  one->isa->isa = one->isa;
  one->isa->super = one->super != nullptr ? one->super->isa : one;
  one->isa->info |= kReady;
  send(find(one->isa, "initialize"), one, "initialize");
}

Method method_of(Class* of, const Selector* selector) {
  const std::lock_guard<std::recursive_mutex> lock(mutex());
  prepare(of);
  return find(of, selector->name);
}

Method looked_up(Class* of, const Selector* selector) {
  const Method method = method_of(of, selector);
  if (method == nullptr)
    metalsim::refuse(
        std::string(of->info & kMeta ? "+[" : "-[") + of->name + " " + selector->name + "]",
        "unrecognized selector",
        metalsim::kEndsProcess);
  return method;
}

void* answer_of_nil() {
  return nullptr;
}

} // namespace

// ---- what compiled code calls ---------------------------------------------------------------------------------------

// Called as each object file is loaded; foundation.mm, which has the class of constant strings, comes first.
extern "C" void __objc_exec_class(Module* module) {
  const std::lock_guard<std::recursive_mutex> lock(mutex());
  void** next = module->symbols->definitions;
  for (int i = 0; i < module->symbols->class_count; ++i) {
    auto* one = static_cast<Class*>(*next++);
    Known& entry = known(one->name);
    entry.loaded = one;
    for (Methods* methods : {&entry.methods[0], &entry.methods[1]}) {
      Class* of = methods == &entry.methods[0] ? one : one->isa;
      of->methods = methods;
      add(*methods, of->own);
    }
  }
  for (int i = 0; i < module->symbols->category_count; ++i) {
    const auto* category = static_cast<Category*>(*next++);
    for (int kind = 0; kind < 2; ++kind)
      add(known(category->of).methods[kind], category->methods[kind]);
  }
  for (auto** list = static_cast<Constants**>(*next); list != nullptr && *list != nullptr; ++list)
    for (Object** object = (*list)->objects; *object != nullptr; ++object)
      (*object)->isa = known((*list)->of).loaded;
  for (int i = 0; i < module->symbols->class_count; ++i) {
    auto* one = static_cast<Class*>(module->symbols->definitions[i]);
    send(own(one->isa, "load"), one, "load");
  }
}

extern "C" Class* objc_lookup_class(const char* name) {
  const std::lock_guard<std::recursive_mutex> lock(mutex());
  return known(name).loaded;
}

extern "C" Class* objc_get_class(const char* name) __attribute__((alias("objc_lookup_class")));

extern "C" Class* objc_get_meta_class(const char* name) {
  return objc_lookup_class(name)->isa;
}

extern "C" Method objc_msg_lookup(Object* receiver, const Selector* selector) {
  return receiver == nullptr ? &answer_of_nil : looked_up(receiver->isa, selector);
}

struct Super {
  Object* receiver;
  Class* super;
};

extern "C" Method objc_msg_lookup_super(const Super* to, const Selector* selector) {
  return to->receiver == nullptr ? &answer_of_nil : looked_up(to->super, selector);
}

// Of the C++ variables of each class clang makes a method: a superclass's are constructed first, and destructed last.
extern "C" void metalsim_construct(Class* of, Object* object) {
  if (of->super != nullptr)
    metalsim_construct(of->super, object);
  send(own(of, ".cxx_construct"), object, ".cxx_construct");
}

extern "C" void metalsim_destruct(Class* of, Object* object) {
  for (; of != nullptr; of = of->super)
    send(own(of, ".cxx_destruct"), object, ".cxx_destruct");
}

// ---- objc/runtime.h -------------------------------------------------------------------------------------------------

extern "C" Class* object_getClass(const Object* object) {
  return object != nullptr ? object->isa : nullptr;
}

extern "C" Class* object_setClass(Object* object, Class* given) {
  return std::exchange(object->isa, given);
}

extern "C" const char* class_getName(const Class* of) {
  return of != nullptr ? of->name : "nil";
}

extern "C" Class* class_getSuperclass(Class* of) {
  const std::lock_guard<std::recursive_mutex> lock(mutex());
  prepare(of);
  return of->super;
}

extern "C" size_t class_getInstanceSize(const Class* of) {
  return size_t(of->instance_size);
}

extern "C" bool class_respondsToSelector(Class* of, const Selector* selector) {
  return of != nullptr && method_of(of, selector) != nullptr;
}

extern "C" const char* sel_getName(const Selector* selector) {
  return selector->name;
}
