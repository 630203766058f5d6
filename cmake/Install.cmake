# make install: the command, the plug-in, the header, the host's libraries that the two were built against, the default
# model when it is there. Everything finds everything relative to itself: the folder can be moved.
#   bin/condense   lib/libggml-condense.so   lib/condense/libllama.so.0 …   include/condense/condense.h
#   lib/condense-mpi.so (where MPI was found)   share/condense/SmolLM2-135M-Instruct.Q4_1.gguf   share/doc/condense/…
# lib/ is fixed, not lib64 or lib/x86_64-linux-gnu: the command looks for ../lib/libggml-condense.so.
if(TARGET condense)
  set_target_properties(condense PROPERTIES INSTALL_RPATH "$ORIGIN/../lib/condense")
  install(TARGETS condense RUNTIME DESTINATION bin)
endif()
if(TARGET ggml-condense)
  # In another program the plug-in meets that program's libggml-base, which is loaded already; the run path serves only
  # hosts that carry none.
  set_target_properties(ggml-condense PROPERTIES INSTALL_RPATH "$ORIGIN/condense")
  install(TARGETS ggml-condense LIBRARY DESTINATION lib)
endif()
if(TARGET condense-mpi)
  install(TARGETS condense-mpi LIBRARY DESTINATION lib)
endif()
install(FILES ${PROJECT_SOURCE_DIR}/include/condense/condense.h DESTINATION include/condense)
install(FILES ${PROJECT_SOURCE_DIR}/LICENSE ${PROJECT_SOURCE_DIR}/README.md DESTINATION share/doc/condense)
install(FILES ${CONDENSE_LLAMA_SOURCE}/LICENSE DESTINATION share/doc/condense RENAME LICENSE.llama.cpp)
install(FILES ${PROJECT_SOURCE_DIR}/build/models/SmolLM2-135M-Instruct.Q4_1.gguf DESTINATION share/condense OPTIONAL)

set(CONDENSE_HOST_LIBRARIES ${llama_libraries})
install(CODE "set(libraries \"${CONDENSE_HOST_LIBRARIES}\")")
install(CODE [[
  file(MAKE_DIRECTORY "$ENV{DESTDIR}${CMAKE_INSTALL_PREFIX}/lib/condense")
  foreach(library IN LISTS libraries)
    # The name that programs ask for (libllama.so.0), with the bits of the file behind it.
    file(GLOB sonames "${library}.?" "${library}.??")
    get_filename_component(real ${library} REALPATH)
    foreach(soname IN LISTS sonames)
      get_filename_component(name ${soname} NAME)
      set(target "$ENV{DESTDIR}${CMAKE_INSTALL_PREFIX}/lib/condense/${name}")
      message(STATUS "Installing: ${target}")
      file(COPY_FILE ${real} "${target}.new")
      # Not every library has a run path to replace: libggml-base needs no other of the host's.
      file(READ_ELF "${target}.new" RPATH rpath RUNPATH runpath CAPTURE_ERROR ignored)
      if(rpath OR runpath)
        file(RPATH_SET FILE "${target}.new" NEW_RPATH "$ORIGIN")
      endif()
      file(RENAME "${target}.new" "${target}")
    endforeach()
  endforeach()
]])
