/* The text of ir/scalar_math.h, which stands at the head of every generated file. */
__asm__(".section .rodata\n"
        ".global c_prelude\n"
        "c_prelude:\n"
        "\t.incbin \"" SCALAR_MATH "\"\n"
        "\t.byte 0\n"
        ".previous\n");
