// Foundation, as much of it as Foundation.h declares, on the run time of classes.cpp.

#import <Foundation/Foundation.h>
#import <objc/runtime.h>

#include <string>
#include <vector>

#include "foundation.h"
#include "refused.h"

using metalsim::refuse;

// ---- objects --------------------------------------------------------------------------------------------------------

namespace {

// In front of every object, so that the object itself begins with its class, as @"constant strings" do.
struct alignas(16) Header {
  int64_t references;
};

Header* header(id object) {
  return reinterpret_cast<Header*>(object) - 1;
}

} // namespace

@implementation NSObject

+ (instancetype)alloc {
  auto* memory = static_cast<Header*>(calloc(1, sizeof(Header) + class_getInstanceSize(self)));
  memory->references = 1;
  id object = reinterpret_cast<id>(memory + 1);
  object_setClass(object, self);
  metalsim_construct(self, object);
  return object;
}

+ (instancetype)new {
  return [[self alloc] init];
}

+ (Class)class {
  return self;
}

- (instancetype)init {
  return self;
}

- (void)dealloc {
  metalsim_destruct(object_getClass(self), self);
  free(header(self));
}

- (instancetype)retain {
  __atomic_add_fetch(&header(self)->references, 1, __ATOMIC_RELAXED);
  return self;
}

- (oneway void)release {
  if (__atomic_sub_fetch(&header(self)->references, 1, __ATOMIC_ACQ_REL) == 0)
    [self dealloc];
}

- (NSUInteger)retainCount {
  return NSUInteger(header(self)->references);
}

- (instancetype)autorelease {
  metalsim::add_to_pool(self);
  return self;
}

- (Class)class {
  return object_getClass(self);
}

- (BOOL)isKindOfClass:(Class)aClass {
  for (Class found = object_getClass(self); found != Nil; found = class_getSuperclass(found))
    if (found == aClass)
      return YES;
  return NO;
}

- (BOOL)respondsToSelector:(SEL)aSelector {
  return class_respondsToSelector(object_getClass(self), aSelector);
}

- (BOOL)isEqual:(id)object {
  return self == object;
}

- (NSUInteger)hash {
  return reinterpret_cast<NSUInteger>(self);
}

- (NSString*)description {
  return [NSString stringWithFormat:@"<%s: %p>", class_getName(object_getClass(self)), self];
}

@end

// What the compiler calls for a property that holds an object, or a structure.
extern "C" void objc_setProperty(id self, SEL, ptrdiff_t offset, id value, BOOL, BOOL) {
  auto* held = reinterpret_cast<id*>(reinterpret_cast<char*>(self) + offset);
  id before = *held;
  *held = [value retain];
  [before release];
}

extern "C" id objc_getProperty(id self, SEL, ptrdiff_t offset, BOOL) {
  return [[*reinterpret_cast<id*>(reinterpret_cast<char*>(self) + offset) retain] autorelease];
}

extern "C" void objc_setPropertyStruct(void* to, const void* from, ptrdiff_t bytes, BOOL, BOOL) {
  memcpy(to, from, size_t(bytes));
}

extern "C" void objc_getPropertyStruct(void* to, const void* from, ptrdiff_t bytes, BOOL, BOOL)
    __attribute__((alias("objc_setPropertyStruct")));

// ---- pools ----------------------------------------------------------------------------------------------------------

namespace {

thread_local NSAutoreleasePool* innermost = nil;

} // namespace

@implementation NSAutoreleasePool

- (instancetype)init {
  _outer = innermost;
  innermost = self;
  return self;
}

- (void)drain {
  innermost = _outer;
  for (id object : _objects)
    [object release];
  [super release];
}

- (oneway void)release {
  [self drain];
}

// Without a pool an object lives as long as its thread, on a Mac too; here for ever.
void metalsim::add_to_pool(id object) {
  if (innermost != nil)
    innermost->_objects.push_back(object);
}

@end

// ---- strings --------------------------------------------------------------------------------------------------------

namespace {

std::string formatted(const char* format, va_list values) {
  if (strstr(format, "%@") != nullptr)
    refuse("Foundation", "%@ in a format is not simulated, use %s with UTF8String", "a Mac takes it");
  va_list again;
  va_copy(again, values);
  std::string text(size_t(vsnprintf(nullptr, 0, format, values)), '\0');
  vsnprintf(text.data(), text.size() + 1, format, again);
  va_end(again);
  return text;
}

} // namespace

NSString* metalsim::new_string(const std::string& text) {
  return [[NSString alloc] initWithUTF8String:text.c_str()];
}

NSString* metalsim::string(const std::string& text) {
  return [new_string(text) autorelease];
}

@implementation NSString

+ (instancetype)string {
  return metalsim::string("");
}

+ (instancetype)stringWithUTF8String:(const char*)text {
  if (text == nullptr)
    refuse("+[NSString stringWithUTF8String:]", "NULL cString", metalsim::kEndsProcess);
  return metalsim::string(text);
}

+ (instancetype)stringWithCString:(const char*)text encoding:(NSStringEncoding)encoding {
  return [self stringWithUTF8String:text];
}

+ (instancetype)stringWithFormat:(NSString*)format, ... {
  va_list values;
  va_start(values, format);
  const std::string text = formatted(format.UTF8String, values);
  va_end(values);
  return metalsim::string(text);
}

- (instancetype)initWithUTF8String:(const char*)text {
  _bytes = strdup(text);
  return self;
}

METALSIM_PROPERTY(const char*, UTF8String, _bytes != nullptr ? _bytes : "")

- (const char*)cStringUsingEncoding:(NSStringEncoding)encoding {
  return self.UTF8String;
}

METALSIM_PROPERTY(NSUInteger, length, strlen(self.UTF8String))

- (BOOL)isEqualToString:(NSString*)other {
  return other != nil && strcmp(self.UTF8String, other.UTF8String) == 0;
}

- (BOOL)isEqual:(id)object {
  return [object isKindOfClass:[NSString class]] && [self isEqualToString:object];
}

METALSIM_PROPERTY(NSString*, description, self)

- (void)dealloc {
  free(const_cast<char*>(_bytes));
  [super dealloc];
}

@end

@implementation NSConstantString

- (instancetype)retain {
  return self;
}

- (oneway void)release {
}

- (instancetype)autorelease {
  return self;
}

- (NSUInteger)retainCount {
  return NSUIntegerMax;
}

@end

extern "C" void NSLog(NSString* format, ...) {
  va_list values;
  va_start(values, format);
  fprintf(stderr, "%s\n", formatted(format.UTF8String, values).c_str());
  va_end(values);
}

// ---- errors and arrays ----------------------------------------------------------------------------------------------

@implementation NSError

NSError* metalsim::error(const std::string& text) {
  NSError* made = [NSError new];
  made->_text = text;
  return [made autorelease];
}

METALSIM_PROPERTY(NSString*, localizedDescription, metalsim::string(_text))
METALSIM_PROPERTY(NSString*, description, self.localizedDescription)
METALSIM_PROPERTY(NSErrorDomain, domain, @"MTLLibraryErrorDomain")
METALSIM_PROPERTY(NSInteger, code, 3) // MTLLibraryErrorCompileFailure

@end

@implementation NSArray

NSArray* metalsim::array(const std::vector<std::string>& texts) {
  NSArray* made = [NSArray new];
  for (const auto& text : texts)
    made->_objects.push_back(metalsim::new_string(text));
  return [made autorelease];
}

- (void)dealloc {
  for (id object : _objects)
    [object release];
  [super dealloc];
}

METALSIM_PROPERTY(NSUInteger, count, _objects.size())

- (id)objectAtIndex:(NSUInteger)index {
  if (index >= _objects.size())
    refuse("-[NSArray objectAtIndex:]", "index " + std::to_string(index) + " beyond bounds", metalsim::kEndsProcess);
  return _objects[index];
}

@end
