// The part of Foundation that host code of a Metal kernel uses, for the simulated Apple GPU. What is not here does not
// compile. Memory is managed by hand (retain, release, autorelease): this run time has no ARC.
#pragma once

#include <dispatch/dispatch.h>
#include <limits.h>
#include <math.h>
#include <objc/runtime.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <string>
#include <vector>

#if __has_feature(objc_arc)
#error "the simulated Apple GPU has no ARC: build without -fobjc-arc, as torch.utils.cpp_extension does by itself"
#endif

#define NS_ASSUME_NONNULL_BEGIN _Pragma("clang assume_nonnull begin")
#define NS_ASSUME_NONNULL_END _Pragma("clang assume_nonnull end")
#define NS_ENUM(type, name) enum name : type name; enum name : type
#define NS_OPTIONS(type, name) type name; enum : name
#define NS_FORMAT_FUNCTION(format, first)
#define NS_RETURNS_RETAINED __attribute__((ns_returns_retained))

typedef unsigned long NSUInteger;
typedef long NSInteger;
#define NSUIntegerMax ULONG_MAX
#define NSIntegerMax LONG_MAX

@class NSArray<Element>;
@class NSError;
@class NSString;

@protocol NSObject
- (instancetype)retain;
- (oneway void)release;
- (instancetype)autorelease;
- (NSUInteger)retainCount;
- (Class)class;
- (BOOL)isKindOfClass:(Class)aClass;
- (BOOL)respondsToSelector:(SEL)aSelector;
- (BOOL)isEqual:(id)object;
- (NSUInteger)hash;
@property(readonly) NSString* description;
@end

__attribute__((objc_root_class))
@interface NSObject <NSObject> {
  Class isa;
}
+ (instancetype)alloc;
+ (instancetype)new;
+ (Class)class;
- (instancetype)init;
- (void)dealloc;
@end

typedef NSUInteger NSStringEncoding;
enum : NSStringEncoding { NSASCIIStringEncoding = 1, NSUTF8StringEncoding = 4 };

@interface NSString : NSObject {
  const char* _bytes;
  unsigned int _count; // what the compiler lays out for @"text", and nothing reads
}
+ (instancetype)string;
+ (instancetype)stringWithUTF8String:(const char*)text;
+ (instancetype)stringWithCString:(const char*)text encoding:(NSStringEncoding)encoding;
+ (instancetype)stringWithFormat:(NSString*)format, ...; // %s, %d, %g and the like; not %@
- (instancetype)initWithUTF8String:(const char*)text;
- (const char*)cStringUsingEncoding:(NSStringEncoding)encoding;
- (BOOL)isEqualToString:(NSString*)other;
@property(readonly) const char* UTF8String;
@property(readonly) NSUInteger length;
@end

// What @"text" is.
@interface NSConstantString : NSString
@end

typedef NSString* NSErrorDomain;

@interface NSError : NSObject {
  std::string _text;
}
@property(readonly) NSString* localizedDescription;
@property(readonly) NSErrorDomain domain;
@property(readonly) NSInteger code;
@end

// array[0] does not compile: for this run time it would be arithmetic with pointers.
@interface NSArray<Element> : NSObject {
  std::vector<id> _objects;
}
@property(readonly) NSUInteger count;
- (Element)objectAtIndex:(NSUInteger)index;
@end

@interface NSAutoreleasePool : NSObject {
  std::vector<id> _objects;
  NSAutoreleasePool* _outer;
}
- (void)drain;
@end

extern "C" void NSLog(NSString* format, ...); // %s, %d, %g and the like; not %@
